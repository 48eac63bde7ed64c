#!/usr/bin/env bash
# setup.sh GROUP...: installs what is missing on a Debian machine. Groups: build (library and command), check (all that the checks need).
# Says nothing and asks no network when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
for group in "$@"; do
    case $group in
    build) packages+=(build-essential cmake ninja-build pkg-config libpthreadpool-dev libjansson-dev) ;;
    check)
        packages+=(clang-14 clang-format-14 libclang-rt-14-dev llvm-14 valgrind libc6-dbg python3 python3-dev python3-venv)
        packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-riscv64-linux-gnu libc6-dev-riscv64-cross qemu-user musl-tools)
        packages+=(gcc-mingw-w64-x86-64-posix wine wine64)
        packages+=(chromium-headless-shell fonts-dejavu-core)
        ;;
    *) echo "setup.sh: unknown group $group (build, check)" >&2; exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup.sh: not a Debian machine; make sure that it has what these packages hold: ${packages[*]}" >&2
else
    missing=()
    for package in "${packages[@]}"; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [[ $status == *installed && $status != not-installed ]] || missing+=("$package")
    done
    if ((${#missing[@]})); then
        as_root=()
        if ((EUID)); then
            command -v sudo >/dev/null || { echo "setup.sh: as root, run: apt-get install ${missing[*]}" >&2; exit 1; }
            as_root=(sudo)
        fi
        echo "installing ${missing[*]}"
        "${as_root[@]}" apt-get update -qq </dev/null
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "${missing[@]}" </dev/null >/dev/null
    fi
fi

# The checks' Python packages, pinned, apart from the machine's own. The peers of make bench are among them.
requirements() { cat bench/peers/requirements.txt checks/requirements.txt; }
if [[ " $* " == *" check "* ]] && ! requirements | cmp -s - build/venv/requirements.txt; then
    echo "installing the checks' Python packages into build/venv (PyTorch and others, about 2 GB)"
    rm -rf build/venv
    mkdir -p build
    python=/usr/bin/python3 # the one that python3-venv belongs to
    [[ -x $python ]] || python=python3
    "$python" -m venv build/venv
    build/venv/bin/python -m pip install -qq --disable-pip-version-check -r checks/requirements.txt </dev/null
    requirements >build/venv/requirements.txt
fi

# The compiler of the CUDA plugin, where the machine has none.
if [[ " $* " == *" check "* && $(uname -m) == x86_64 ]] && ! command -v nvcc >/dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]] &&
    ! cmp -s checks/cuda-requirements.txt build/cuda/requirements.txt; then
    echo "installing NVIDIA's compiler into build/cuda (about 350 MB)"
    rm -rf build/cuda
    build/venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --target build/cuda -r checks/cuda-requirements.txt </dev/null
    chmod +x build/cuda/nvidia/cu13/bin/* build/cuda/nvidia/cu13/nvvm/bin/*
    cp checks/cuda-requirements.txt build/cuda/requirements.txt
fi
