#!/usr/bin/env bash
# binary.sh SHARED IMPORTS [SONAME]: the shared library is small when stripped, has its soname, no memory that is both writable and
# executable, no executable stack, no text relocations, and imports only what the list IMPORTS allows.
set -euo pipefail
shared=$1 imports=$2 soname=$3
limit=1000000 # bytes, stripped
fail() { echo "binary.sh: $*" >&2; exit 1; }
stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT

strip --strip-unneeded -o "$stripped" "$shared"
size=$(stat -c %s "$stripped")
((size < limit)) || fail "$size bytes stripped; the limit is $limit"

dynamic=$(readelf -dW "$shared")
[[ $dynamic == *"soname: [$soname]"* ]] || fail "the soname is not $soname"
[[ $dynamic != *TEXTREL* ]] || fail "has text relocations"
[[ $dynamic != *RPATH* && $dynamic != *RUNPATH* ]] || fail "has a search path of its own"
segments=$(readelf -lW "$shared" |
    awk '$1 == "LOAD" || $1 == "GNU_STACK" { flags = ""; for (i = 7; i < NF; i++) flags = flags $i; print $1, flags }')
[[ $segments == *GNU_STACK* ]] || fail "has no GNU_STACK header"
! grep -E 'W.*E' <<<"$segments" || fail "has memory that is writable and executable"

taken=$(nm -D --undefined-only --format=posix "$shared" | awk '{ sub(/@.*/, "", $1); print $1 }' | sort -u)
foreign=$(comm -23 <(echo "$taken") <(grep -v -e '^#' -e '^$' "$imports" | sort -u))
[[ -z $foreign ]] || fail "imports what $imports does not allow:" $foreign
echo "$size bytes stripped, $(wc -l <<<"$taken") imports"
