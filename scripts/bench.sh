#!/usr/bin/env bash
# bench.sh BUILD PEERS [OPTION...]: times ours and the peers (torch, onnxruntime, with commas; none) and prints the table, with options of
# attn bench and --rounds=N (how often each peer has its turn); leaves BUILD/peers.json and BUILD/bench.html.
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

python=$(scripts/peers.sh)
PYTHONDONTWRITEBYTECODE=1 "$python" bench/peers/peers.py --attn "$build/attn" --out "$build/peers.json" --peers "$peers" "${all[@]}"

result=0
"$build/attn" bench --compare "$build/peers.json" "${page[@]}" "${ours[@]}" || result=$?
[[ $result != 0 || ${#page[@]} == 0 ]] || echo "the same as a page: $build/bench.html"
exit $result
