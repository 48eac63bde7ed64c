#!/usr/bin/env bash
# exports.sh HEADER LIBRARY: a shared library for any machine or system exports the functions that the header declares with ATTN_API, all of
# them and nothing else. On Windows and macOS, whose systems bring all that is needed, it also takes nothing from other libraries.
set -euo pipefail
header=$1 library=$2
declared=$(tr '\n' ' ' <"$header" | grep -o 'ATTN_API [^;(]*(' | grep -o 'attn_[a-z0-9_]* *($' | tr -d ' (' | sort)
[[ -n $declared ]] || { echo "found no declaration in $header" >&2; exit 1; }

case $library in
*.so) # musl's own start files bring _init and _fini
    exported=$(llvm-nm-14 --dynamic --defined-only --format=just-symbols "$library" | grep -vxE '_init|_fini')
    needed='' own=''
    ;;
*.dylib)
    exported=$(llvm-nm-14 --extern-only --defined-only --format=just-symbols "$library" | sed 's/^_//')
    needed=$(llvm-objdump-14 --macho --dylibs-used "$library" | awk 'NR > 1 && !/\/libattn\./ { print $1 }')
    own='/usr/lib/libSystem\.B\.dylib'
    ;;
*.dll)
    tables=$(x86_64-w64-mingw32-objdump --private-headers "$library")
    exported=$(sed -n '/^\[Ordinal\/Name Pointer\] Table/,/^$/s/^\s*\[ *[0-9]*\]\( +base\[ *[0-9]*\] *[0-9a-f]*\)\? //p' <<<"$tables")
    needed=$(awk '/DLL Name:/ { print tolower($3) }' <<<"$tables")
    own='kernel32\.dll|msvcrt\.dll|ucrtbase\.dll|api-ms-win-crt-.*\.dll'
    ;;
esac
diff <(echo "$declared") <(sort <<<"$exported") || { echo "< declared in the header, > exported by the library" >&2; exit 1; }
foreign=$([[ -z $needed ]] || grep -vxE "$own" <<<"$needed" || true)
[[ -z $foreign ]] || { echo "needs more than its system has:" $foreign >&2; exit 1; }
echo "$(wc -l <<<"$declared") functions declared and exported${needed:+; needs }"$needed
