"""merge over the C API: states of disjoint sets of keys become the state of all of them."""
from __future__ import annotations

import numpy as np

from . import _arrays as arrays
from . import _gpu as gpus
from . import _native as native
from ._attention import AXES, LAYOUTS, READ_ONLY, Tensor, choice, context_of, device_of, times


def merge(states, *, out=None, layout="bhld", device=None, threads=None):
    """One state of all keys from states of disjoint sets of keys, folded in order: (out, lse) from a list of such pairs.

    states          pairs as attention(..., return_lse=True) gives them: out float32 in the layout, lse float32 [batch, heads, rows]. An
                    lse of -inf is the state of no keys. Those that are not dense, or not aligned, are copied. A sink belongs into exactly
                    one of them. All lie in the CPU's memory, or all on one GPU.
    out             write here: float32, float16 or bfloat16, dense, and none of the states.

    Returns (out, lse), float32 unless out says otherwise, of the first state's kind."""
    choice("layout", layout, AXES, '"bhld" or "blhd"')
    try:
        states = [tuple(state) for state in states]
    except TypeError:
        raise TypeError(f"states: must be a list of pairs (out, lse), not {type(states).__name__}") from None
    if not states or any(len(state) != 2 for state in states):
        raise ValueError("states: must be one or more pairs (out, lse)")
    like = states[0][0]
    kind, signature, _, _ = arrays.look(like, "states[0] out")
    gpu = kind.gpu(signature)
    memory = None if gpu is None else gpus.memory_of(kind, like, gpu)
    stream = memory and memory.stream
    looks = [(f"states[{i}] {part}", *arrays.look(x, f"states[{i}] {part}", stream), x)
             for i, pair in enumerate(states) for part, x in zip(("out", "lse"), pair)]
    if out is not None:
        looks.append(("out", *arrays.look(out, "out", stream), out))
    device, index = device_of(device, [(name, other.gpu(described)) for name, other, described, *_ in looks])
    shape = tuple(kind.read(signature, "states[0] out")[0])
    if len(shape) != 4:
        raise ValueError(f"states[0] out: must have 4 axes, {', '.join(layout)}, not {len(shape)}; its shape is {times(shape)}")
    batch, heads, rows, dim = (shape[a] for a in AXES[layout])
    if heads == 0 or dim == 0:
        raise ValueError(f"states[0] out: must have one head or more, of one element or more; its shape is {times(shape)} ({layout})")
    context = context_of(device, threads, "exact", index=index)
    problem = context.problem(LAYOUTS[layout], native.F32, batch, heads, heads, rows, 0, dim)
    shapes = {"out": shape, "lse": (batch, heads, rows)}
    dense = [dense_f32(looked, shapes[("out", "lse")[i % 2]]) for i, looked in enumerate(looks[:2 * len(states)])]
    if out is None:
        result = kind.empty(like, shape, native.F32)
        at_out = arrays.look(result, "out", stream)[2]
    else:
        at_out = set_out(problem, looks[-1], shape, layout)
    lse = kind.empty(like, shapes["lse"], native.F32)
    arguments = native.stamped(native.Args, out=at_out, lse=arrays.look(lse, "lse", stream)[2], stream=stream)
    scratch = 0 if memory is None else context.workspace(problem)
    if scratch:
        (arguments.workspace, keep), arguments.workspace_size = memory.scratch(scratch), scratch
    pairs = [(dense[i][0], dense[i + 1][0]) for i in range(0, len(dense), 2)]
    context.library.check(context.merge(problem, pairs, arguments), lambda: f"; given {len(states)} states of {times(shape)}")
    if out is None:
        return kind.finish(result), kind.finish(lse)
    looks[-1][1].written(out)
    return out, kind.finish(lse)


def set_out(problem, looked, shape, layout):
    """The address of the caller's out."""
    name, kind, signature, address, _, out = looked
    o = Tensor(name, kind, signature, layout)
    if not kind.writable(out):
        raise ValueError(READ_ONLY)
    if o.plain != shape:
        raise ValueError(f"out: its shape is {times(o.plain)} but must be {times(shape)}, as the first state's")
    if not is_dense(o.plain, [o.strides[a] for a in AXES[layout]]):
        raise ValueError(f"out: must be dense; its shape is {times(o.plain)}")
    if address % arrays.SIZES[o.type]:
        raise ValueError(f"out: lies at an address that is no multiple of its element size, {arrays.SIZES[o.type]}; "
                         f"its shape is {times(o.plain)}")
    problem.type_out = o.type
    return address


def is_dense(shape, strides):
    return 0 in shape or all(n == 1 or s == d for n, s, d in zip(shape, strides, arrays.dense_strides(shape)))


def dense_f32(looked, shape):
    """The address of a float32 array of the shape, row after row: its own, or a copy's, and what holds it."""
    name, kind, signature, address, keep, x = looked
    given, strides, code = kind.read(signature, name)
    if code != native.F32:
        raise TypeError(f"{name}: must be float32, not {arrays.NAMES[code]}")
    if tuple(given) != tuple(shape):
        raise ValueError(f"{name}: its shape is {times(given)} but must be {times(shape)}, as the first state's")
    if is_dense(given, strides) and address % 4 == 0:
        return address, keep
    if kind.gpu(signature) is not None:
        return gpus.dense(kind, name, x)
    view = np.lib.stride_tricks.as_strided(
        np.frombuffer((native.c_char * 4).from_address(address), np.float32), given, [4 * s for s in strides])
    copy = view.copy()
    return copy.ctypes.data, copy
