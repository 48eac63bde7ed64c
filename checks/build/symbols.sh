#!/usr/bin/env bash
# symbols.sh HEADER SHARED STATIC: the shared library exports the functions that the header declares with ATTN_API, all of them and
# nothing else; every global name of the static library begins with attn_.
set -euo pipefail
header=$1 shared=$2 static=$3

declared=$(tr '\n' ' ' <"$header" | grep -o 'ATTN_API [^;(]*(' | grep -o 'attn_[a-z0-9_]* *($' | tr -d ' (' | sort)
exported=$(nm -D --defined-only --format=posix "$shared" | awk '{ print $1 }' | sort)
[[ -n $declared ]] || { echo "found no declaration in $header" >&2; exit 1; }
diff <(echo "$declared") <(echo "$exported") || { echo "< declared in the header, > exported by the library" >&2; exit 1; }

strays=$(nm -g --defined-only --format=posix "$static" | awk 'NF > 2 && $1 !~ /^attn_/ { print $1 }')
[[ -z $strays ]] || { echo "global names without attn_: $strays" >&2; exit 1; }
echo "$(echo "$declared" | wc -l) functions declared and exported"
