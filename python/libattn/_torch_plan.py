"""What PyTorch's scaled_dot_product_attention is asked for, from shapes and strides alone, as a problem of libattn, or why not."""
from __future__ import annotations

import ctypes
import functools
import math
import os
import pathlib

import torch

from . import _native as native
from ._arrays import dense_strides
from ._attention import context_of

TYPES = {torch.float32: native.F32, torch.float16: native.F16, torch.bfloat16: native.BF16}
MASK_TYPES = {**TYPES, torch.bool: native.BOOL}


class Left:
    """Why a call is left to PyTorch. `error`: the text of what a direct call raises instead, where PyTorch's paths
    disagree, read out of bounds or end the process."""

    def __init__(self, reason, error=None):
        self.reason, self.error = reason, error


in_child = False  # of a fork: there GCC's OpenMP hangs where the parent has used it


def enter_child():
    global in_child
    in_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=enter_child)


@functools.lru_cache(maxsize=None)
def gomp_parallel():
    """Where the OpenMP library that PyTorch itself uses starts its threads, or None where it is another's or not found. After each of
    PyTorch's operations those threads spin for a while, and others would have to share the CPUs with them."""
    for file in pathlib.Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"):
        try:
            return ctypes.cast(ctypes.CDLL(str(file)).GOMP_parallel, ctypes.c_void_p).value  # looks in what the file depends on, too
        except (OSError, AttributeError):
            pass
    return None


def context(threads, precision):
    threads = min(threads, 1024)
    return context_of("cpu", threads, precision, gomp_parallel() if threads > 1 and not in_child else None)


SHAPES = Left("shapes that do not fit each other")
EMPTY = Left("no elements")


class Plan:
    """A problem, ready to run. `copies`: for each of query, key, value and mask, None or the shape of the dense copy that it takes."""

    def __init__(self, context, problem, out_shape, out_strides, copies):
        self.context, self.problem, self.out_shape, self.out_strides = context, problem, out_shape, out_strides
        self.copies = copies if any(copy is not None for copy in copies) else None
        self.handle, self.forward = context.handle, context.lib.attn_forward
        self.address = native.ctypes.addressof(problem)


def broadcast(*shapes):
    """The common shape, or None. Like torch.broadcast_shapes, without its exceptions."""
    rank = max(map(len, shapes))
    sizes = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    common = tuple(max(axis) if 0 not in axis else 0 for axis in zip(*sizes))
    fits = all(n in (1, m) for shape in sizes for n, m in zip(shape, common))
    return common if fits else None


def spread(shape, strides, full):
    """Strides of leading axes that are broadcast to full: 0 where one element stands for many."""
    missing = len(full) - len(shape)
    return (0,) * missing + tuple(0 if n == 1 else stride for n, stride in zip(shape, strides))


def folded(sizes, strides):
    """The stride of these axes as one, or None where no single one steps through them."""
    stride, expected = 0, None
    for n, s in zip(reversed(sizes), reversed(strides)):
        if n == 1:
            continue
        if expected is None:
            stride = s
        elif s != expected:
            return None
        expected = s * n
    return stride


class Operand:
    """One of query, key and value: batch axes, heads, rows, elements, with the strides that the common batch shape gives it."""

    def __init__(self, x):
        self.shape = (1,) * (3 - x.dim()) + tuple(x.shape)
        self.strides = (0,) * (3 - x.dim()) + tuple(x.stride())
        self.lead, self.heads, self.rows, self.dim = self.shape[:-3], *self.shape[-3:]

    def place(self, batch, heads):
        """(strides, None), or (the strides of a dense copy, its shape)."""
        stride, strides, copy = folded(batch, spread(self.lead, self.strides[:-3], batch)), self.strides, None
        if stride is None or (self.dim > 1 and strides[-1] != 1):
            copy, strides, stride = dense_copy(self.lead, self.shape[-3:], batch)
        return native.Strides(stride, 0 if self.heads == 1 and heads > 1 else strides[-3], strides[-2]), copy


def dense_copy(lead, rest, batch):
    """Its shape, its strides, and the stride of all batch axes as one: expanded to these only where it must be."""
    for axes in (lead, batch):
        shape = (*axes, *rest)
        strides = dense_strides(shape)
        stride = folded(batch, spread(axes, strides[:-3], batch))
        if stride is not None:
            break
    return shape, strides, stride


def place_mask(mask, batch, heads, rows, keys):
    """Like Operand.place; None where its shape does not broadcast."""
    full = (*batch, heads, rows, keys)
    shape = tuple(mask.shape)
    if len(shape) > len(full) or broadcast(shape, full) != full:
        return None
    strides, copy = spread(shape, mask.stride(), full), None
    stride = folded(batch, strides[:-3])
    if stride is None:
        copy, strides, stride = dense_copy(shape[:-3], shape[-3:], batch)
        strides = spread(copy, strides, full)
    return native.MaskStrides(stride, *strides[-3:]), copy


def heads_of(q, k, v, gqa):
    """(query heads, key heads) as libattn counts them, or None."""
    if gqa:
        return (q.heads, k.heads) if k.heads and k.heads == v.heads and q.heads % k.heads == 0 else None
    heads = broadcast((q.heads,), (k.heads,), (v.heads,))
    if heads is None:
        return None
    return heads[0], 1 if k.heads == v.heads == 1 else heads[0]


def out_shape(query, key, value, gqa):
    """For tracing, too: sizes may be symbols, and what does not fit is an error of broadcast_shapes."""
    if gqa:
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        return (*batch, query.shape[-3], query.shape[-2], value.shape[-1])
    return (*torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2]), query.shape[-2], value.shape[-1])


def empty_out(query, key, value, mask, gqa):
    """What the result is written to. Its strides are PyTorch's: query's order of axes where its fused kernel would run, else dense."""
    fused = query.dim() == key.dim() == value.dim() == 4 and (mask is None or mask.dim() in (2, 4)) \
        and query.shape[0] == key.shape[0] == value.shape[0] and (gqa or query.shape[1] == key.shape[1] == value.shape[1]) \
        and query.shape[3] == value.shape[3] and query.stride(3) == key.stride(3) == value.stride(3) == 1
    return torch.empty_like(query) if fused else query.new_empty(out_shape(query, key, value, gqa))


def ill_typed(query, key, value, mask, scale):
    if not (query.dtype == key.dtype == value.dtype):
        return Left("dtypes that differ")
    if query.dtype not in TYPES:
        return Left(f"dtype {query.dtype}")
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return Left(f"a mask of dtype {mask.dtype}")
    if scale is not None and not math.isfinite(scale):
        return Left("a scale that is not finite")
    return None


def ill_shaped(query, key, value, mask, gqa):
    if min(query.dim(), key.dim(), value.dim()) < (3 if gqa else 2) or (mask is not None and mask.dim() < 2):
        return Left("too few axes")
    if query.shape[-1] != key.shape[-1]:
        return SHAPES
    if key.shape[-2] != value.shape[-2]:
        return Left(SHAPES.reason, (f"key and value must have the same length, not {key.shape[-2]} and {value.shape[-2]}; "
                                   f"key is {tuple(key.shape)} and value {tuple(value.shape)}"))
    if gqa and 0 in (key.shape[-3], value.shape[-3]):
        return Left(SHAPES.reason, f"key and value must have heads; key is {tuple(key.shape)} and value {tuple(value.shape)}")
    if 0 in query.shape or 0 in key.shape or 0 in value.shape:
        return EMPTY
    return None


def make(query, key, value, mask, causal, scale, gqa, threads, softcap, window):
    """A Plan, or Left. causal: False, True (from the top left) or "bottom-right". window: keys up to the diagonal, or None."""
    left = ill_typed(query, key, value, mask, scale) or ill_shaped(query, key, value, mask, gqa)
    if left:
        return left
    q, k, v = Operand(query), Operand(key), Operand(value)
    heads = heads_of(q, k, v, gqa)
    batch = broadcast(q.lead, k.lead, v.lead)
    if heads is None or batch is None:
        return Left("a number of heads that differs between key and value") if gqa and k.heads != v.heads else SHAPES
    heads_q, heads_kv = heads
    places = [q.place(batch, heads_q), k.place(batch, heads_kv), v.place(batch, heads_kv)]
    if mask is not None:
        scores = (*broadcast(q.lead, k.lead), heads_q if gqa else max(q.heads, k.heads))  # PyTorch adds it in place to these
        if mask.dim() > max(query.dim(), key.dim()) or broadcast(mask.shape[:-2], scores) != scores:
            return SHAPES
        place = place_mask(mask, batch, heads_q, q.rows, k.rows)
        if place is None:
            return SHAPES
        places.append(place)
    run_by = context(threads, "exact" if query.dtype == torch.float32 else "fast")
    problem = run_by.problem(native.BHLD, TYPES[query.dtype], math.prod(batch), heads_q, heads_kv, q.rows, k.rows, q.dim)
    problem.dim_v = v.dim
    out = empty_out(query, key, value, mask, gqa)
    axes = (0,) * (3 - out.dim()) + out.stride()
    problem.out = native.Strides(folded(batch, axes[:-3]), axes[-3] if heads_q > 1 else v.dim * q.rows, axes[-2] if q.rows > 1 else v.dim)
    if scale is not None:
        problem.scale = scale
    problem.softcap = softcap
    if causal:
        problem.right = 0
        problem.align = native.BOTTOM_RIGHT if causal == "bottom-right" else native.TOP_LEFT
    if window is not None:
        problem.left = window - 1
    if mask is not None:
        problem.type_mask = MASK_TYPES[mask.dtype]
    for name, (strides, _) in zip(("q", "k", "v", "mask"), places):
        setattr(problem, name, strides)
    try:
        run_by.workspace(problem)  # asks the library whether it takes the problem
    except native.StatusError as why:
        return Left(str(why))
    return Plan(run_by, problem, tuple(out.shape), out.stride(), [copy for _, copy in places])
