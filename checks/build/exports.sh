#!/usr/bin/env bash
# exports.sh OBJDUMP HEADER DLL: the DLL exports the functions that the header declares with ATTN_API, all of them and nothing else, and
# takes what it needs from Windows itself.
set -euo pipefail
objdump=$1 header=$2 dll=$3

declared=$(tr '\n' ' ' <"$header" | grep -o 'ATTN_API [^;(]*(' | grep -o 'attn_[a-z0-9_]* *($' | tr -d ' (' | sort)
[[ -n $declared ]] || { echo "found no declaration in $header" >&2; exit 1; }
tables=$("$objdump" --private-headers "$dll")
exported=$(sed -n '/^\[Ordinal\/Name Pointer\] Table/,/^$/s/^\s*\[ *[0-9]*\]\( +base\[ *[0-9]*\] [0-9a-f]*\)\? //p' <<<"$tables" | sort)
diff <(echo "$declared") <(echo "$exported") || { echo "< declared in the header, > exported by the library" >&2; exit 1; }
needed=$(awk '/DLL Name:/ { print tolower($3) }' <<<"$tables" | sort -u)
foreign=$(grep -vxE 'kernel32\.dll|msvcrt\.dll|ucrtbase\.dll|api-ms-win-crt-.*' <<<"$needed" || true)
[[ -z $foreign ]] || { echo "needs more than Windows has:" $foreign >&2; exit 1; }
echo "$(wc -l <<<"$declared") functions declared and exported; needs" $needed
