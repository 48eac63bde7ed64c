#!/usr/bin/env bash
# header.sh HEADER COMPILER...: the header compiles on its own, without a warning, in every language that it promises. For each COMPILER
# (such as gcc) its C++ twin (g++) is used too.
set -euo pipefail
header=$(realpath "$1")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "#include \"$header\"" >"$folder/alone.c"
cp "$folder/alone.c" "$folder/alone.cc"

strict=(-fsyntax-only -pedantic -Wall -Wextra -Wshadow -Wundef -Werror)
for compiler in "$@"; do
    twin=${compiler/gcc/g++}
    twin=${twin/clang/clang++}
    for standard in c99 c11 c17; do "$compiler" -std=$standard "${strict[@]}" -Wstrict-prototypes "$folder/alone.c"; done
    for standard in c++11 c++17 c++20; do "$twin" -std=$standard "${strict[@]}" "$folder/alone.cc"; done
    echo "$compiler, $twin: good"
done
