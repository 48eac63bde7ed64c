#!/usr/bin/env bash
# moves.sh OBJDUMP LIBRARY: no vector of 32 or 64 bytes is moved from or to memory by an instruction that faults where the address is no
# multiple of that: the stacks of Windows are aligned to 16 bytes (cmake/system.cmake).
set -euo pipefail
code=$("$1" --disassemble --no-show-raw-insn "$2")
vectors=$(grep -cE '\sv?mov.*[yz]mm.*\(' <<<"$code" || true)
((vectors > 100)) || { echo "moves.sh: found only $vectors moves of vectors in $2" >&2; exit 1; }
! grep -E '\svmov(ap[sd]|dqa(32|64)?|ntp[sd]|ntdqa?)\s.*([yz]mm.*\(|\(.*[yz]mm)' <<<"$code" || { echo "moves.sh: these need alignment" >&2; exit 1; }
echo "$vectors moves of vectors, none needs alignment"
