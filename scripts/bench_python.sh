#!/usr/bin/env bash
# bench_python.sh BUILD [OPTION...]: what a call costs in Python, then libattn.torch beside PyTorch with the options of bench/python_torch.py.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
python=$(scripts/peers.sh)
export PYTHONPATH=$PWD/python LIBATTN_LIBRARY=$PWD/$build/libattn.so PYTHONDONTWRITEBYTECODE=1
"$python" bench/python_overhead.py
echo
exec "$python" bench/python_torch.py --attn "$build/attn" "$@"
