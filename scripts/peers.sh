#!/usr/bin/env bash
# peers.sh: prints the path of a Python that has what bench/ imports: ATTN_PEERS_PYTHON, where nothing can be installed; that of the checks
# (scripts/setup.sh check), where it is there; else build/peers, where it installs them on first use.
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=bench/peers/requirements.txt
if [[ -n ${ATTN_PEERS_PYTHON-} ]]; then
    echo "$ATTN_PEERS_PYTHON"
    exit
elif cat $requirements checks/requirements.txt | cmp -s - build/venv/requirements.txt; then
    echo build/venv/bin/python
    exit
elif ! cmp -s $requirements build/peers/requirements.txt; then
    echo "installing PyTorch and other packages into build/peers (a large download)" >&2
    rm -rf build/peers
    mkdir -p build
    base=/usr/bin/python3 # the one that python3-venv belongs to
    [[ -x $base ]] || base=python3
    if ! "$base" -m venv build/peers >&2 ||
        ! build/peers/bin/python -m pip install -qq --disable-pip-version-check -r $requirements </dev/null >&2; then
        echo "peers.sh: they could not be installed (python3-venv comes with 'make setup'); libattn alone: make bench PEERS=none" >&2
        exit 1
    fi
    cp $requirements build/peers/
fi
echo build/peers/bin/python
