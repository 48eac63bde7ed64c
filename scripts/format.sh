#!/usr/bin/env bash
# format.sh: lays out every C file of the repository by .clang-format.
set -euo pipefail
cd "$(dirname "$0")/.."
find include src cli checks bench examples \( -name '*.[ch]' -o -name '*.cc' \) -print0 | xargs -0 clang-format-14 -i
