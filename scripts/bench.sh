#!/usr/bin/env bash
# bench.sh BUILD PEERS [OPTION...]: times ours and the peers (torch, onnxruntime, with commas; none) and prints the table, with options of
# attn bench and --rounds=N (how often each peer has its turn); leaves BUILD/peers.json and BUILD/bench.html. The peers' Python packages are
# those of the checks (scripts/setup.sh check), or where these are not there installed into build/peers on first use.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 peers=$2
shift 2

all=("$@") ours=() page=(--html "$build/bench.html")
while (($#)); do
    case $1 in
    --rounds) shift ;; # of the peers alone, as is --rounds=N
    --rounds=*) ;;
    *)
        case $1 in
        --html*) page=() ;;
        --list | --help | -'?' | --usage | --version | -V | --save*) peers=none ;; # nothing is timed
        esac
        ours+=("$1")
        ;;
    esac
    shift || break
done
[[ $peers != none ]] || exec "$build/attn" bench "${ours[@]}"

requirements=bench/peers/requirements.txt
python=${ATTN_PEERS_PYTHON:-build/peers/bin/python} # one that has them already, where nothing can be installed
if [[ -z ${ATTN_PEERS_PYTHON-} ]] && cat $requirements checks/requirements.txt | cmp -s - build/venv/requirements.txt; then
    python=build/venv/bin/python
elif [[ -z ${ATTN_PEERS_PYTHON-} ]] && ! cmp -s $requirements build/peers/requirements.txt; then
    echo "installing the peers into build/peers (a large download; ours alone: make bench PEERS=none)"
    rm -rf build/peers
    mkdir -p build
    base=/usr/bin/python3 # the one that python3-venv belongs to
    [[ -x $base ]] || base=python3
    if ! "$base" -m venv build/peers ||
        ! build/peers/bin/python -m pip install -qq --disable-pip-version-check -r $requirements </dev/null; then
        echo "bench.sh: the peers could not be installed (python3-venv comes with 'make setup'); ours alone: make bench PEERS=none" >&2
        exit 1
    fi
    cp $requirements build/peers/
fi
PYTHONDONTWRITEBYTECODE=1 "$python" bench/peers/peers.py --attn "$build/attn" --out "$build/peers.json" --peers "$peers" "${all[@]}"

result=0
"$build/attn" bench --compare "$build/peers.json" "${page[@]}" "${ours[@]}" || result=$?
[[ $result != 0 || ${#page[@]} == 0 ]] || echo "the same as a page: $build/bench.html"
exit $result
