#!/usr/bin/env bash
# demo.sh BUILD: attention on real input with a built command, verified against the reference: the problem that the project starts from
# (grouped heads, one query token, 1024 keys, in every type and in two passes), and a real model's tensors for a real sentence.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
show() {
    printf '\n$'
    printf ' %q' "$@"
    printf '\n'
    "$@"
}

show "$build/attn" info
show "$build/attn" check --case origin --passes 2 --seed 1
show "$build/attn" run examples/capture/minilm.safetensors -o "$build/demo-out.safetensors" --verify --explain

printf '\ndemo: everything above was verified against the reference.\n'
