"""What a call costs in Python over the same call in C, in microseconds: attention that is next to nothing, with one thread.

    make bench-python
    python bench/python_overhead.py

The C call is attn_forward with its arguments in place, called through ctypes, less a call through ctypes that does nothing. Every way is timed
in turn, round after round; of each the smallest of its rounds' medians is told, since the rest of the machine only adds."""
import argparse
import ctypes
import statistics
import time

import numpy as np
import torch
from torch.nn import functional

import libattn
import libattn._native as native
import libattn.torch

CALLS = 400  # of a block
SHAPES = ((1, 8, 1, 64), (1, 2, 16, 64))  # of q; of k and v


def block(call):
    times = []
    for _ in range(CALLS):
        before = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - before)
    return statistics.median(times) / 1e3


def in_c(context, q, k, v):
    """The library's function with everything at hand, and one that does nothing, through ctypes."""
    problem = context.problem(native.BHLD, native.F32, 1, q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
    context.dense(problem, native.BHLD)
    out = np.empty_like(q)
    packed = native.pack_args(q.ctypes.data, k.ctypes.data, v.ctypes.data, out.ctypes.data, *[0] * 8)
    forward, handle, address, version = context.lib.attn_forward, context.handle, ctypes.addressof(problem), context.lib.attn_version
    keep = problem, out
    return lambda: forward(handle, address, packed) or keep, version


def in_python(q, k, v):
    """name: (the call, the overhead that is wanted at most, or None)."""
    out, tensors = np.empty_like(q), [torch.from_numpy(x) for x in (q, k, v)]
    attention, sdpa, pytorch = libattn.attention, libattn.torch.scaled_dot_product_attention, functional.scaled_dot_product_attention
    return {
        "attention(NumPy)": (lambda: attention(q, k, v, threads=1), 10),
        "attention(NumPy, out=)": (lambda: attention(q, k, v, out=out, threads=1), 10),
        "attention(PyTorch)": (lambda: attention(*tensors, threads=1), 15),
        "libattn.torch": (lambda: sdpa(*tensors, enable_gqa=True), 15),
        "PyTorch's own, whole": (lambda: pytorch(*tensors, enable_gqa=True), None),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal(SHAPES[i], np.float32) for i in (0, 1, 1))
    with native.library().open(threads=1) as context, torch.inference_mode():
        forward, nothing = in_c(context, q, k, v)
        ways = {"C": (forward, None), "nothing": (nothing, None), **in_python(q, k, v)}
        medians = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, (call, _) in ways.items():
                medians[name].append(block(call))
    best = {name: min(found[1:]) for name, found in medians.items()}
    plain = best.pop("C") - best.pop("nothing")
    print(f"the C call: {plain:.1f} us\n{'':24} over it  wanted")
    for name, cost in best.items():
        print(f"{name:24} {cost - plain:7.1f}  {ways[name][1] or ''}")


if __name__ == "__main__":
    main()
