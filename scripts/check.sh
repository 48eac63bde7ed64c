#!/usr/bin/env bash
# check.sh FOLDER [CTEST-OPTION...]: builds FOLDER with warnings as errors and runs its checks. Ends with one line of counts.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
shift

scripts/build.sh "$folder" -DATTN_WERROR=ON -DATTN_BUILD_CHECKS=ON -DATTN_CHECK_MATRIX=ON
reports=$(realpath "$folder")/reports
rm -rf "$reports"
mkdir "$reports"
result=0
ctest --test-dir "$folder" --parallel 2 --output-on-failure --no-tests=error \
    --output-junit "$reports/ctest.xml" "$@" </dev/null || result=$?
build/venv/bin/python scripts/summary.py "$reports/ctest.xml" "$reports"
exit $result
