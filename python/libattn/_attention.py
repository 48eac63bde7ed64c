"""attention, explain and info over the C API. A call's description (shapes, strides, types, options) is worked out once and kept; a
call that looks like an earlier one only fetches addresses."""
from __future__ import annotations

import dataclasses
import functools
import math
import os
import threading

import numpy as np

from . import _arrays as arrays
from . import _gpu as gpus
from . import _native as native

AXES = {"bhld": (0, 1, 2, 3), "blhd": (0, 2, 1, 3)}  # of batch, head, row, element
LAYOUTS = {"bhld": native.BHLD, "blhd": native.BLHD}
DEVICES = {None: native.CPU, "cpu": native.CPU, "reference": native.REFERENCE, "cuda": native.CUDA}
CAUSAL = {None: False, False: False, True: True, "top-left": "top-left", "bottom-right": "bottom-right"}  # 0 and 1 are False and True
CORNERS = {None: None, "top-left": native.TOP_LEFT, "bottom-right": native.BOTTOM_RIGHT}
PRECISIONS = {"exact": native.EXACT, "fast": native.FAST}
KEPT = 1024  # descriptions
READ_ONLY = "out: is read-only, or of a kind that does not let itself be written to (JAX arrays, what has DLPack alone)"

pack_args, pack_args_and_stream = native.pack_args, native.pack_args_and_stream
plans = {}
opening = threading.RLock()  # a handler of signals, or a __del__, may call while its own thread is opening


def renew_lock():
    """The thread that holds it may not be in this process."""
    global opening
    opening = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_lock)


@functools.lru_cache(maxsize=None)
def open_context(device, threads, precision, gomp_parallel, index):
    return native.library().open(device=device, threads=threads, precision=precision, gomp_parallel=gomp_parallel, index=index)


def context_of(device, threads, precision, gomp_parallel=None, index=0):
    device = choice("device", device, DEVICES, '"cpu", "reference" or "cuda"')
    precision = choice("precision", precision, PRECISIONS, '"exact" or "fast"')
    threads = whole("threads", 0 if threads is None else threads)
    with opening:
        return open_context(device, max(-1, min(threads, 1025)), precision, gomp_parallel, index)


def device_of(device, places):
    """The device to use and its index, from what is asked for and from where the arrays lie: [(name, GPU or None)], the first decides."""
    first, gpu = places[0]
    for name, other in places[1:]:
        if other != gpu:
            raise ValueError(f"{name}: lies {gpus.place(other)}, but {first} {gpus.place(gpu)}")
    word, colon, index = device.partition(":") if isinstance(device, str) else (device, "", "")
    if colon and not (word == "cuda" and index.isdecimal()):
        word = device
    choice("device", word, DEVICES, '"cpu", "reference" or "cuda"')
    if device is not None and ((word == "cuda") != (gpu is not None) or (colon and int(index) != gpu)):
        raise ValueError(f"device: is {device!r}, but {first} lies {gpus.place(gpu)}")
    return (word, 0) if gpu is None else ("cuda", gpu)


def whole(name, x):
    """An integer of any integer type."""
    try:
        value = x.__index__()
    except (AttributeError, TypeError, RuntimeError):
        raise TypeError(f"{name}: must be an integer, not {x!r}") from None
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: {value} does not fit 64 bits")
    return value


def number(name, x):
    try:
        if isinstance(x, (str, bytes, bytearray)):
            raise TypeError
        return float(x)
    except OverflowError:
        raise ValueError(f"{name}: must fit float32, and does not") from None
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name}: must be a number, not {x!r}") from None


def choice(name, x, table, text):
    try:
        return table[x]
    except (KeyError, TypeError):
        raise ValueError(f"{name}: must be {text}, not {x!r}") from None


def times(shape):
    return "×".join(map(str, shape)) or "no axes"


class Tensor:
    """An array as the problem sees it: its shape and strides in elements, in the order batch, head, row, element."""

    def __init__(self, name, kind, signature, layout):
        self.name = name
        self.plain, strides, self.type = kind.read(signature, name)
        if len(self.plain) != 4:
            raise ValueError(f"{name}: must have 4 axes, {', '.join(layout)}, not {len(self.plain)}; its shape is {times(self.plain)}")
        if self.type == native.BOOL:
            raise TypeError(f"{name}: must be of float32, float16 or bfloat16, not bool")
        if self.plain[3] > 1 and strides[3] != 1 and all(self.plain):
            raise ValueError(f"{name}: its last axis must be contiguous (stride 1), but has stride {strides[3]}; "
                             f"its shape is {times(self.plain)}")
        axes = AXES[layout]
        self.shape = tuple(self.plain[a] for a in axes)
        self.strides = tuple(strides[a] for a in axes)

    def __str__(self):
        return f"{self.name} {times(self.plain)} {arrays.NAMES[self.type]}"


class Plan:
    """A problem, ready to be run: `address` for the library, and what the caller gets back."""

    def __init__(self, context, problem, out_shape, tensors):
        self.context, self.handle, self.problem, self.out_shape, self.tensors = context, context.handle, problem, out_shape, tensors
        self.address = native.ctypes.addressof(problem)
        self.lse_shape = (problem.batch, problem.heads_q, problem.len_q)
        self.out_type, self.batch, self.heads_q = problem.type_out, problem.batch, problem.heads_q
        self.lengths = {"len_q": min(problem.len_q, 2**31 - 1), "len_kv": min(problem.len_kv, 2**31 - 1)}  # int32 in the library
        self.forward = context.lib.attn_forward
        self.scratch = 0  # bytes that a call on a GPU is given to work in

    def about(self):
        return "; given " + ", ".join(map(str, self.tensors))


def check_shapes(q, k, v, layout):
    """Each rule by itself, so that the text names the array and both shapes."""
    def unlike(a, b, what, axis):
        if a.shape[axis] != b.shape[axis]:
            raise ValueError(f"{b.name}: its {what} is {b.shape[axis]} but {a.name}'s is {a.shape[axis]}; "
                             f"{a.name} is {times(a.plain)} and {b.name} {times(b.plain)} ({layout})")
    unlike(q, k, "batch", 0)
    unlike(q, v, "batch", 0)
    unlike(k, v, "number of heads", 1)
    unlike(k, v, "length", 2)
    unlike(q, k, "head dim", 3)
    for x in (q, v):
        if x.shape[3] == 0:
            raise ValueError(f"{x.name}: its head dim must be 1 or more; its shape is {times(x.plain)} ({layout})")
    if k.shape[1] == 0 or q.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.name}: its number of heads, {q.shape[1]}, must be a positive multiple of {k.name}'s, {k.shape[1]}; "
                         f"{q.name} is {times(q.plain)} and {k.name} {times(k.plain)} ({layout})")


def set_band(problem, causal, window, offset, align):
    """causal, window, offset and align as the diagonal and the keys on either side of it."""
    causal = choice("causal", causal, CAUSAL, 'False, True, "top-left" or "bottom-right"')
    corner = choice("align", align, CORNERS, '"top-left" or "bottom-right"')
    if isinstance(causal, str):
        if corner not in (None, CORNERS[causal]):
            raise ValueError(f"align: is {align!r}, but causal is {causal!r}; one of them says which corner the diagonal starts from")
        corner = CORNERS[causal]
    if causal is True and corner is None and problem.len_q != problem.len_kv:
        raise ValueError(f'causal: with {problem.len_q} rows and {problem.len_kv} keys it or align must say which corner the '
                         'diagonal starts from, "top-left" (row i sees keys up to i) or "bottom-right" (the last row sees all)')
    left, right = native.UNBOUNDED, native.UNBOUNDED
    if window is not None:
        pair = isinstance(window, (tuple, list))
        if pair and len(window) != 2:
            raise ValueError(f"window: must be a number of keys, or (left, right), not {window!r}")
        left, right = window if pair else (whole("window", window) - 1, 0)
        left, right = (native.UNBOUNDED if side is None else whole("window", side) for side in (left, right))
        if left < -1 or right < -1 or (left == -1 and not pair):
            raise ValueError("window: must be 1 key or more, or (left, right) with each 0 or more, or None (or -1) for no limit; "
                             f"not {window!r}")
    if causal:
        right = 0
    problem.align = native.TOP_LEFT if corner is None else corner
    problem.offset, problem.left, problem.right = 0 if offset is None else whole("offset", offset), left, right


def set_mask(problem, kind, signature):
    shape, strides, code = kind.read(signature, "mask")
    full = (problem.batch, problem.heads_q, problem.len_q, problem.len_kv)
    if len(shape) > 4 or any(n not in (1, m) for n, m in zip(shape[::-1], full[::-1])):
        raise ValueError(f"mask: its shape {times(shape)} does not broadcast to {times(full)} (batch, heads of q, rows, keys)")
    strides = (0,) * (4 - len(shape)) + tuple(0 if n == 1 else s for n, s in zip(shape, strides))
    problem.type_mask, problem.mask = code, native.MaskStrides(*strides)


def prepare(looks, mask, out, causal, window, offset, align, scale, softcap, layout, device, threads, precision):
    """The plan of a call; every rule that can be told from shapes and options is checked here."""
    choice("layout", layout, AXES, '"bhld" or "blhd"')
    given = [*zip("qkv", looks), *([("mask", mask)] if mask is not None else []), *([("out", out)] if out is not None else [])]
    device, index = device_of(device, [(name, kind.gpu(signature)) for name, (kind, signature) in given])
    q, k, v = (Tensor(name, kind, signature, layout) for name, (kind, signature) in zip("qkv", looks))
    check_shapes(q, k, v, layout)
    batch, heads_q, len_q, dim = q.shape
    context = context_of(device, threads, precision, index=index)
    problem = context.problem(LAYOUTS[layout], q.type, batch, heads_q, k.shape[1], len_q, k.shape[2], dim)
    problem.dim_v, problem.type_k, problem.type_v = v.shape[3], k.type, v.type
    shape = (batch, heads_q, len_q, v.shape[3])
    plain = tuple(shape[a] for a in AXES[layout])
    context.dense(problem, LAYOUTS[layout])
    tensors = [q, k, v]
    for tensor in tensors:
        setattr(problem, tensor.name, native.Strides(*tensor.strides[:3]))
    if out is not None:
        o = Tensor("out", *out, layout)
        if o.plain != plain:
            raise ValueError(f"out: its shape is {times(o.plain)} but must be {times(plain)} ({layout}, from {q} and {v})")
        problem.type_out, problem.out = o.type, native.Strides(*o.strides[:3])
        tensors.append(o)
    if scale is not None:
        problem.scale = number("scale", scale)
    problem.softcap = cap = number("softcap", softcap)
    if cap and not problem.softcap:
        raise ValueError(f"softcap: {softcap!r} is 0 as a float32, which would mean none")
    set_band(problem, causal, window, offset, align)
    if mask is not None:
        set_mask(problem, *mask)
    plan = Plan(context, problem, plain, tensors)
    workspace = context.workspace(problem, plan.about)  # asks the library whether it takes the problem
    plan.scratch = workspace if device == "cuda" else 0
    return plan


def remember(plans, key, plan):
    if len(plans) >= KEPT:
        plans.clear()
    plans[key] = plan


def keep_plan(key, plan):
    """Not where an option may change its value and stay itself, as a tensor of one number does."""
    if not all(x is None or isinstance(x, (str, int, float, np.generic)) for option in key[6:]
               for x in (option if type(option) is tuple else (option,))):
        return
    remember(plans, key, plan)


def refuse(status, plan, addresses, at_mask):
    """Raises what the library found wrong; which array is misaligned it does not say."""
    if status == native.MISALIGNED:
        problem = plan.problem
        types = {"q": problem.type_q, "k": problem.type_k, "v": problem.type_v, "out": problem.type_out, "mask": problem.type_mask}
        for name, address in {**addresses, "mask": at_mask}.items():
            if address and address % arrays.SIZES[types[name]]:
                raise native.StatusError(f"{name}: lies at an address that is no multiple of its element size, "
                                         f"{arrays.SIZES[types[name]]}{plan.about()}", status)
    plan.context.library.check(status, plan.about)


def vector(name, x, dtype, count, most=None):
    """A small vector as the library takes it; a copy where it is of another type."""
    array = arrays.small(x, name)
    if array.size == 0 and isinstance(x, (list, tuple)):
        array = array.astype(dtype)  # NumPy makes float64 of nothing
    if array.dtype.kind not in ("iu" if most is not None else "iuf") and (most is not None or array.dtype.name != "bfloat16"):
        raise TypeError(f"{name}: must hold {'integers' if most is not None else 'numbers'}, not {array.dtype}")
    if most is not None and array.ndim == 0:
        array = np.broadcast_to(array, count)
    if array.shape != (count,):
        raise ValueError(f"{name}: its shape is {times(array.shape)} but must be {count}, "
                         f"{'one for each sequence' if most is not None else 'one for each head of q'}")
    if most is not None and count and not (0 <= int(array.min()) and int(array.max()) <= most):
        raise ValueError(f"{name}: its entries must be between 0 and {most}, and are between {array.min()} and {array.max()}")
    if array.dtype.kind != "f" or array.dtype.itemsize <= 4:
        return np.ascontiguousarray(array, dtype)
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(array, dtype)
    except FloatingPointError:
        raise ValueError(f"{name}: its entries must fit float32, and do not") from None


def vectors(plan, memory, sinks, alibi_slopes, len_q, len_kv):
    """The addresses of those that are given, as the library takes them, 0 for the others, each with what holds it. memory: the GPU's, or
    None."""
    heads, batch, lengths = plan.heads_q, plan.batch, plan.lengths
    found = []
    for name, x, dtype, count, most in (
            ("sinks", sinks, np.float32, heads, None), ("alibi_slopes", alibi_slopes, np.float32, heads, None),
            ("len_q", len_q, np.int32, batch, lengths["len_q"]), ("len_kv", len_kv, np.int32, batch, lengths["len_kv"])):
        if x is None:
            found.append((0, None))
        elif memory is not None and gpus.holds(x):
            found.append(gpus.vector(memory, name, x, most is not None, count))
        else:
            array = vector(name, x, dtype, count, most)
            found.append((array.ctypes.data, array) if memory is None else memory.put(array))
    return found


def attention(q, k, v, *, mask=None, causal=False, window=None, offset=None, align=None, scale=None, softcap=0.0, sinks=None,
              alibi_slopes=None, len_q=None, len_kv=None, return_lse=False, out=None, layout="bhld", device=None, threads=None,
              precision="exact"):
    """Scaled dot-product attention, softmax(scale · q kᵀ + mask) v, with every intermediate in float32.

    Arrays may be NumPy (float32, float16, ml_dtypes.bfloat16), PyTorch tensors, JAX arrays on the CPU, or anything with DLPack, the
    buffer protocol or ``__array_interface__``; they are read where they lie, with their own strides, and never copied. The result is of
    q's kind and type. The GIL is released while it is computed. Arrays on a GPU lie all on one, which computes, in PyTorch's current
    stream or for other libraries in the default one; the call does not wait for it.

    q               [batch, heads_q, len_q, dim_qk]; with layout="blhd": [batch, len_q, heads_q, dim_qk]. The last axis is contiguous.
    k, v            [batch, heads_kv, len_kv, dim_qk] and [.., dim_v]. heads_q is a multiple of heads_kv: query head h uses key head
                    h // (heads_q // heads_kv).
    mask            bool (True: takes part) or float (added to the scores, unscaled; -inf hides), of a shape that broadcasts to
                    [batch, heads_q, len_q, len_kv], in either layout.
    causal          "top-left": row i sees keys 0 to i. "bottom-right": the last row sees all keys. True where both are the same.
    window          w: the w keys up to the diagonal. (left, right): so many on either side of it, None for no limit.
    offset          moves the diagonal to the right.
    align           "bottom-right": the diagonal starts from that corner, of each sequence's own lengths, for a window or slopes without
                    causal. None: from the one that causal names, else "top-left".
    scale           default 1/sqrt(dim_qk); 0 and negative are legal.
    softcap         c > 0: scores become c · tanh(score / c) before the mask is added. 0: none.
    sinks           [heads_q]: one more score for each row, without a value.
    alibi_slopes    [heads_q]: slope · distance to the diagonal is subtracted from scores.
    len_q, len_kv   [batch] or one number: actual lengths (on a GPU already: used as they are). Rows of out past len_q are 0
                    (untouched in an out of yours), lse -inf.
    return_lse      also return lse, float32 [batch, heads_q, len_q]: the natural log of each row's sum of exponentials.
    out             write here (any of the three types, strides of its own) and return it.
    device          None (default): where the arrays lie. "cpu"; "cuda" or "cuda:1" for a GPU; "reference": the definition in double, slow.
    threads         default: one for each CPU that this process may use.
    precision       "exact", or "fast": probabilities may be rounded to 16 bits where that is faster; explain() says by how much.

    A row that sees no key is 0, and its lse -inf. Raises TypeError for what is no array or of a wrong type, ValueError for a rule that is
    broken; the text names the argument, with the shapes. Nothing is written then."""
    look = arrays.look
    kind, sign_q, at_q, keep_q = look(q, "q")
    gpu = kind.gpu(sign_q)
    memory = stream = None
    if gpu is not None:
        memory = gpus.memory_of(kind, q, gpu)
        stream = memory.stream
    kind_k, sign_k, at_k, keep_k = look(k, "k", stream)
    kind_v, sign_v, at_v, keep_v = look(v, "v", stream)
    sign_mask = sign_out = None
    at_mask = 0
    if mask is not None:
        kind_mask, sign_mask, at_mask, keep_mask = look(mask, "mask", stream)
    if out is not None:
        kind_out, sign_out, at_out, keep_out = look(out, "out", stream)
        if not kind_out.writable(out):
            raise ValueError(READ_ONLY)
    if type(window) is list:
        window = tuple(window)
    whole_types = tuple(map(type, window)) if type(window) is tuple else type(window), type(offset), type(threads)  # 1 == 1.0
    key = (sign_q, sign_k, sign_v, sign_mask, sign_out, whole_types, causal, window, offset, align, scale, softcap, layout, device, threads,
           precision)
    try:
        plan = plans.get(key)
    except TypeError:  # an option that cannot be hashed
        plan = key = None
    if plan is None:
        plan = prepare(((kind, sign_q), (kind_k, sign_k), (kind_v, sign_v)), sign_mask and (kind_mask, sign_mask),
                       sign_out and (kind_out, sign_out), causal, window, offset, align, scale, softcap, layout, device, threads,
                       precision)
        if key is not None:
            keep_plan(key, plan)
    if sinks is None and alibi_slopes is None and len_q is None and len_kv is None:
        at_sinks = at_slopes = at_len_q = at_len_kv = 0
    else:
        keep = vectors(plan, memory, sinks, alibi_slopes, len_q, len_kv)
        at_sinks, at_slopes, at_len_q, at_len_kv = (address for address, _ in keep)
    result = out
    if out is None:
        result = kind.empty(q, plan.out_shape, plan.out_type)
        if len_q is not None:
            result[...] = 0
        at_out = look(result, "out", stream)[2]
    lse, at_lse = None, 0
    if return_lse:
        lse = kind.empty(q, plan.lse_shape, native.F32)
        if len_q is not None:
            lse[...] = -math.inf
        at_lse = look(lse, "lse", stream)[2]
    arguments = at_q, at_k, at_v, at_out, at_lse, at_mask, at_sinks, at_slopes, at_len_q, at_len_kv
    if gpu is None:
        status = plan.forward(plan.handle, plan.address, pack_args(*arguments, 0, 0))
    else:
        at_scratch, keep_scratch = memory.scratch(plan.scratch) if plan.scratch else (0, None)
        status = plan.forward(plan.handle, plan.address, pack_args_and_stream(*arguments, at_scratch, plan.scratch, stream))
    if status:
        refuse(status, plan, {"q": at_q, "k": at_k, "v": at_v, "out": at_out}, at_mask)
    if out is None:
        result = kind.finish(result)
    else:
        kind_out.written(out)
    return (result, kind.finish(lse)) if return_lse else result


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What would run, and why. Counts are for the problem's full lengths."""

    device: str
    isa: str
    kernel: str          #: such as "thin" (few rows, keys read in place), "wide" or "tile"
    passes: int
    threads: int         #: that would take part
    chunk: int           #: keys to a chunk
    chunks: int          #: that a row block is cut into
    rows: int            #: rows that share one reading of k and v
    jobs: int
    workspace: int       #: bytes
    bytes: float         #: q, k, v, out and mask once
    operations: float    #: 2 (dim_qk + dim_v) for each visible pair
    weight_error: float  #: what rounding may take from a probability, relative to it; 0: it stays float32
    reason: str


def explain(q, k, v, *, mask=None, causal=False, window=None, offset=None, align=None, scale=None, softcap=0.0, sinks=None,
            alibi_slopes=None, len_q=None, len_kv=None, return_lse=False, out=None, layout="bhld", device=None, threads=None,
            precision="exact"):
    """How attention(...) with these arguments would be computed: an Explanation. Nothing is computed, and no element of q, k, v, mask or
    out is read. sinks, alibi_slopes, len_q and len_kv are checked and, like return_lse, change nothing about it."""
    looks = [arrays.look(x, name)[:2] for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    plan = prepare(looks, None if mask is None else arrays.look(mask, "mask")[:2], None if out is None else arrays.look(out, "out")[:2],
                   causal, window, offset, align, scale, softcap, layout, device, threads, precision)
    kind, signature = looks[0]
    memory = None if kind.gpu(signature) is None else gpus.memory_of(kind, q, kind.gpu(signature))
    vectors(plan, memory, sinks, alibi_slopes, len_q, len_kv)
    found = plan.context.explain(plan.problem, plan.about)
    values = {field.name: getattr(found, field.name) for field in dataclasses.fields(Explanation)}
    return Explanation(**{name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()})


def info():
    """A dict: version, library (the file), device, isa (in use), isas (usable here, best last), threads (of a call), pool (whose)."""
    description = context_of(None, None, "exact").describe()
    return {"version": native.library().version(), "library": native.library().path, "device": description.device.decode(),
            "isa": description.isa.decode(), "isas": description.isas.decode().split(), "threads": description.threads,
            "pool": description.pool.decode()}
