#!/usr/bin/env bash
# sources.sh SOURCE: the rules for source files: at most 500 lines a file and 60 a function, a comment first that says the file's duty,
# nothing left to do, no machine's own paths, and every script runnable.
set -euo pipefail
cd "$1"
mapfile -t files < <(find include src cli checks examples -name '*.[ch]' | sort)

awk 'FNR == 1 { if ($0 !~ /^\/\*/) bad("does not begin with what the file is for"); start = 0 }
    FNR == 501 { bad("more than 500 lines") }
    /^[a-z].*\) \{$/ || (/\) \{$/ && previous ~ /^[a-z].*,$/) { start = FNR }
    /^\}/ { if (start && FNR - start + 1 > 60) bad("the function that begins at line " start " has " FNR - start + 1 " lines"); start = 0 }
    { previous = $0 }
    function bad(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; failed = 1 }
    END { exit failed }' "${files[@]}"

pattern='\b(TO''DO|FIX''ME|X''XX)\b|/ro''ot/|/ho''me/[a-z]'
! grep -nE "$pattern" "${files[@]}" || { echo "the lines above should not be here" >&2; exit 1; }

for script in scripts/*.sh checks/build/*.sh .ci/run; do [[ -x $script ]] || { echo "$script is not executable" >&2; exit 1; }; done
echo "${#files[@]} files"
