#!/usr/bin/env bash
# trespass.sh COMMAND...: COMMAND, which runs trespass.c on some machine, must fail for each of its ways: failures and crashes get through.
set -euo pipefail
for way in fail read write; do
    if output=$("$@" $way 2>/dev/null); then
        echo "trespass.sh: '$way' went unnoticed" >&2
        exit 1
    fi
    [[ $output == *"about to $way"* ]] || { echo "trespass.sh: does not run" >&2; exit 1; }
done
echo "failures and forbidden reads and writes are noticed"
