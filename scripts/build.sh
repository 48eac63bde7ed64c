#!/usr/bin/env bash
# build.sh FOLDER [CMAKE-OPTION...]: configures FOLDER where it is not yet, or where options are given, and builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
shift

for tool in cmake ninja cc; do
    command -v $tool >/dev/null || { echo "build.sh: $tool is missing; 'make setup' installs what is needed" >&2; exit 1; }
done
if [[ ! -f $folder/build.ninja ]] || (($#)); then
    mkdir -p "$folder"
    if ! cmake -S . -B "$folder" -G Ninja "$@" >"$folder/configure.log" 2>&1; then
        cat "$folder/configure.log" >&2
        echo "build.sh: configuring failed; 'make setup' installs what is needed" >&2
        exit 1
    fi
fi
cmake --build "$folder"
