#!/usr/bin/env bash
# check_cuda.sh BUILD [STEP...]: checks the CUDA device on a machine with a GPU: what is built in BUILD, or brought there (attn, libattn.so,
# libattn_cuda.so, checks/check_cuda, checks/example_cuda; nothing is built here). Steps: device, problems, conformance, python, sanitizer;
# without: all. python takes a Python with pytest and a PyTorch with CUDA (ATTN_TORCH_PYTHON, else python3). Ends with a line for each step,
# and with 1 where one failed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1")
shift
steps=("$@")
((${#steps[@]})) || steps=(device problems conformance python sanitizer)
export ATTN_PLUGINS=$build LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[[ ${ATTN_PYTHON-} ]] || { ATTN_PYTHON=build/venv/bin/python && [[ -x $ATTN_PYTHON ]]; } || ATTN_PYTHON=python3

device() { "$build/checks/check_cuda" && "$build/checks/example_cuda"; }

problems() { # every type, mask, band and length against the reference, in every way that there is
    local result=0 options
    for options in '--precision exact' '--precision fast' '--isa general' '--isa general --passes 2 --chunk 64'; do
        echo "attn check --device cuda $options"
        # shellcheck disable=SC2086 # several words
        "$build/attn" check --device cuda $options --seed 1 --seconds "${SECONDS_EACH:-20}" </dev/null || result=1
    done
    return $result
}

conformance() { # cases by other hands
    PYTHONDONTWRITEBYTECODE=1 ATTN_LIB=$build/libattn.so ATTN_BIN=$build/attn \
        "$ATTN_PYTHON" -m pytest -q -rs -p no:cacheprovider --target cuda checks/conformance </dev/null
}

python() { # tensors of PyTorch's, its streams and graphs
    local torch=${ATTN_TORCH_PYTHON:-python3}
    if ! "$torch" -c 'import pytest, torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        echo "left out: $torch has no pytest, or no PyTorch with CUDA (ATTN_TORCH_PYTHON)"
        return
    fi
    PYTHONPATH=$PWD/python LIBATTN_LIBRARY=$build/libattn.so PYTHONDONTWRITEBYTECODE=1 \
        "$torch" -m pytest -q -rs -p no:cacheprovider checks/python/test_cuda.py -k "not stand_in" </dev/null
}

watched() { # TOOL COMMAND...
    echo "compute-sanitizer --tool $*"
    compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 "${@:2}" </dev/null
}

sanitizer() {
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not on the PATH" >&2; return 1; }
    local result=0 tool
    for tool in memcheck racecheck synccheck initcheck; do
        watched $tool "$build/checks/check_cuda" runs || result=1
    done
    watched memcheck "$build/checks/check_cuda" merges || result=1
    watched memcheck "$build/attn" check --device cuda --seed 1 --seconds 1 || result=1
    return $result
}

result=0
report=()
for step in "${steps[@]}"; do
    case $step in
    device | problems | conformance | python | sanitizer) ;;
    *) echo "check_cuda.sh: no step $step (device, problems, conformance, python, sanitizer)" >&2; exit 2 ;;
    esac
    printf '\n== %s\n' "$step"
    begun=$SECONDS code=0
    "$step" || code=$?
    ((code == 0)) || result=1
    report+=("$step: $( ((code == 0)) && echo good || echo "FAILED ($code)"), $((SECONDS - begun)) s")
done
printf '\n%s\n' "${report[@]}"
exit $result
