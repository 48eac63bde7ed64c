#!/usr/bin/env bash
# format.sh [--check]: lays out the C files of the repository by .clang-format; --check only tells. The public header is left alone: it is a
# manual, set in columns by hand.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(-i)
[[ ${1-} != --check ]] || mode=(--dry-run -Werror)
find src cli checks examples \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 clang-format-14 "${mode[@]}"
