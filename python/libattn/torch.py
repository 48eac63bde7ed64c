"""scaled_dot_product_attention for PyTorch: the signature and the results of PyTorch's own, on CPU tensors, several times as fast for some.

    from libattn.torch import scaled_dot_product_attention   # called by name
    libattn.torch.install()                                  # or in place of torch.nn.functional's, for all code that looks it up there
    with libattn.torch.installed(): ...
    libattn.torch.stats()                                    # what was taken, and what was left to PyTorch and why

What libattn cannot do is left to PyTorch's own function: calls that autograd records, other devices and dtypes, subclasses of Tensor."""
import contextlib
import itertools
import logging
import os
import threading

from ._extras import extra

with extra("torch", __name__):
    import torch
from torch.autograd import forward_ad
from torch.nn.attention.bias import CausalBias
from torch.nn import functional

from . import _native as native
from . import _torch_plan as planning
from ._attention import remember
from ._torch_composed import composed
from ._torch_plan import Left

__all__ = ["install", "installed", "reset_stats", "scaled_dot_product_attention", "stats", "uninstall"]

log = logging.getLogger("libattn")
pytorch = functional.scaled_dot_product_attention
pack_args = native.pack_args
plans = {}
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
NUMBERS = (float, int, type(None))
strided = torch.strided
is_grad_enabled, is_autocast_enabled, thread_count = torch.is_grad_enabled, torch.is_autocast_enabled, torch.get_num_threads
is_tracing_by_dynamo = torch.compiler.is_dynamo_compiling
dispatch_modes, function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
transforms, jit_trace = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
flash_wanted, math_wanted = torch._C._get_flash_sdp_enabled, torch._C._get_math_sdp_enabled

SUBCLASS = Left("a subclass of Tensor")
GRAD = Left("autograd records it")
DEVICE = Left("not plain tensors in the CPU's memory")
TRANSFORM = Left("vmap, another transform of torch.func, or forward-mode gradients")
MODE = Left("a mode that intercepts operations, or torch.jit.trace")
AUTOCAST = Left("autocast to another dtype")
ARGUMENTS = Left("an argument of another type")
DROPOUT = Left("dropout")
SINKS = Left("sinks that are not one for each head")
BACKEND = Left("a backend chosen by sdpa_kernel")
MEMORY = Left("elements without memory, or at addresses that are no multiples of their size")
MASKED_CAUSAL = Left("both attn_mask and is_causal", error=(
    "scaled_dot_product_attention: attn_mask must not be given when is_causal=True; leave one of them away"))


class Counts:
    """How many calls went where; safe for threads, and for a signal's handler that calls while its own thread counts."""

    def __init__(self):
        self.lock, self.taken, self.left = threading.RLock(), 0, {}

    def take(self):
        with self.lock:
            self.taken += 1

    def leave(self, reason):
        with self.lock:
            first = reason not in self.left
            self.left[reason] = self.left.get(reason, 0) + 1
        if first:
            log.info("scaled_dot_product_attention: left to PyTorch: %s (said once)", reason)


counts = Counts()


def stats():
    """{"taken": calls computed by libattn, "left": {why: calls left to PyTorch}} since the process started or reset_stats().

    Calls made from compiled graphs count when they run. Those that PyTorch was left while a graph was traced do not count."""
    with counts.lock:
        return {"taken": counts.taken, "left": dict(counts.left)}


def reset_stats():
    """Sets all counts to 0. A reason is logged again the next time that it comes up."""
    with counts.lock:
        counts.taken, counts.left = 0, {}


def only_device_modes():
    """True where every mode that sees calls of torch functions only sets a default device, which no tensor made here depends on."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext
    return all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def special(tensors):
    """Why these are no plain tensors outside of any transform, or None. The quick checks of attend say only that something may be."""
    if not PLAIN.issuperset(map(type, tensors)):
        return SUBCLASS
    if is_grad_enabled() and any(x.requires_grad for x in tensors):
        return GRAD
    if transforms() is not None or forward_ad._current_level >= 0:
        return TRANSFORM
    if dispatch_modes() or jit_trace() is not None or (function_modes() and not only_device_modes()):
        return MODE
    if any(not x.is_cpu or x.layout is not strided or x.is_neg() for x in tensors):
        return DEVICE
    return AUTOCAST if any(x.dtype != torch.get_autocast_dtype("cpu") for x in tensors[:3]) and is_autocast_enabled("cpu") else None


def attend(q, k, v, mask, causal, scale, gqa, softcap=0.0, window=None, sinks=None):
    """The result, or a Left. causal and window as in planning.make; sinks [heads_q]."""
    if (type(q) not in PLAIN or type(k) not in PLAIN or type(v) not in PLAIN or q.requires_grad or k.requires_grad or v.requires_grad
            or not q.is_cpu or not k.is_cpu or not v.is_cpu or q.layout is not strided or k.layout is not strided
            or v.layout is not strided or q.is_neg() or k.is_neg() or v.is_neg()
            or mask is not None and (type(mask) not in PLAIN or mask.requires_grad or not mask.is_cpu or mask.layout is not strided
                                     or mask.is_neg())
            or transforms() is not None or dispatch_modes() or function_modes() or jit_trace() is not None
            or forward_ad._current_level >= 0 or is_autocast_enabled("cpu")):
        left = special((q, k, v) if mask is None else (q, k, v, mask))
        if left is not None:
            return left
    if sinks is not None:
        if sinks.requires_grad and is_grad_enabled():
            return GRAD
        sinks = sinks.detach().float().contiguous().resolve_neg()
        if not sinks.is_cpu or sinks.shape != q.shape[-3:-2]:
            return SINKS
    threads = thread_count()
    try:
        key = (q.shape, q.stride(), q.dtype, k.shape, k.stride(), k.dtype, v.shape, v.stride(), v.dtype,
               None if mask is None else (mask.shape, mask.stride(), mask.dtype), causal, scale, gqa, threads, softcap, window)
    except RuntimeError:  # a nested tensor has no shape
        return DEVICE
    plan = plans.get(key)
    if plan is None:
        plan = planning.make(q, k, v, mask, causal, scale, gqa, threads, softcap, window)
        remember(plans, key, plan)
    if type(plan) is Left:
        return plan
    if plan.copies is not None:
        q, k, v, mask = (x if copy is None else x.expand(copy).contiguous() for x, copy in
                         itertools.zip_longest((q, k, v, mask), plan.copies))
    out = q.new_empty_strided(plan.out_shape, plan.out_strides)
    status = plan.forward(plan.handle, plan.address, pack_args(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), 0, 0 if mask is None else mask.data_ptr(),
        0 if sinks is None else sinks.data_ptr(), 0, 0, 0, 0, 0))
    if status:
        if status == native.MISALIGNED or status in native.NULL_ARRAYS:
            return MEMORY
        plan.context.library.check(status)
    return out


def pass_on(function, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """PyTorch's own. CausalBias asks whether the function called is the one that torch.nn.functional has now."""
    options = dict(attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    if isinstance(attn_mask, CausalBias):
        return CausalBias.__torch_function__(functional.scaled_dot_product_attention, (CausalBias,), (query, key, value), options)
    return function(query, key, value, **options)


def tried(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    """attend, with what only an eager call has to look at."""
    if (is_causal is not True and is_causal is not False) or (enable_gqa is not True and enable_gqa is not False) \
            or not isinstance(scale, NUMBERS) or not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor) \
            or not isinstance(value, torch.Tensor) or (attn_mask is not None and not isinstance(attn_mask, torch.Tensor)):
        return ARGUMENTS
    if is_causal and attn_mask is not None:
        return MASKED_CAUSAL if not isinstance(attn_mask, CausalBias) else SUBCLASS
    return attend(query, key, value, attn_mask, is_causal, scale, enable_gqa)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """softmax(scale · query keyᵀ + attn_mask) value, as torch.nn.functional.scaled_dot_product_attention.

    query       [..., heads, L, E]; key [..., heads_kv, S, E]; value [..., heads_kv, S, Ev], each of two axes or more, float32, float16 or
                bfloat16 in the CPU's memory. Leading axes broadcast. Copied where the last axis is not contiguous, or where more than two
                leading axes cannot be stepped through as one.
    attn_mask   bool (True: takes part), or float32 or query's dtype (added to the scores), of a shape that broadcasts to [..., L, S].
    dropout_p   0. Else ValueError: libattn does inference.
    is_causal   row i sees keys 0 to i. Not with attn_mask (RuntimeError).
    scale       default 1/sqrt(E). 0 and negative are legal.
    enable_gqa  heads is a multiple of heads_kv: head h uses head h // (heads // heads_kv) of key and value.

    Returns [..., heads, L, Ev] of query's dtype. A row that sees no key is 0, as it is on all CPU paths of PyTorch 2.5 and later; what a
    hidden key or value holds, NaN included, never matters (in PyTorch it does). For 16-bit inputs probabilities may be rounded to 16
    bits, as PyTorch rounds them. Uses torch.get_num_threads() threads at most.

    Where libattn cannot do a call (see stats()), PyTorch's own function does it: then also errors are PyTorch's."""
    if dropout_p != 0.0:
        raise ValueError(f"dropout_p: must be 0, not {dropout_p!r}; libattn computes attention for inference only")
    if is_tracing_by_dynamo():
        return traced(pytorch, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    result = tried(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if type(result) is not Left:
        counts.take()
        return result
    if result.error is not None:
        raise RuntimeError(result.error)
    if result is SUBCLASS and torch.compiler.is_compiling():
        return traced(pytorch, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    counts.leave(result.reason)
    return pass_on(pytorch, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


# ---- torch.compile: an operator of PyTorch's dispatcher, which a graph can hold ----

@torch.library.custom_op("libattn::attention", mutates_args=(), device_types="cpu", schema=(
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, bool enable_gqa, float softcap=0., "
    "SymInt? window=None, Tensor? sinks=None) -> Tensor"))
def operator(query, key, value, attn_mask, is_causal, scale, enable_gqa, softcap=0.0, window=None, sinks=None):
    result = attend(query, key, value, attn_mask, is_causal, scale, enable_gqa, softcap, window, sinks)
    if type(result) is not Left:
        counts.take()
        return result
    counts.leave(result.reason)
    result = composed(query, key, value, attn_mask, is_causal, scale, enable_gqa, 0.0, softcap, window, sinks)
    return planning.empty_out(query, key, value, attn_mask, enable_gqa).copy_(result)


@operator.register_fake
def operator_of_shapes(query, key, value, attn_mask, is_causal, scale, enable_gqa, softcap=0.0, window=None, sinks=None):
    return planning.empty_out(query, key, value, attn_mask, enable_gqa)


def traceable(query, key, value, attn_mask, sinks=None):
    """True where the operator may go into a graph: what is asked here does not depend on sizes."""
    tensors = [x for x in (query, key, value, attn_mask, sinks) if x is not None]
    if any(x.device.type != "cpu" or x.layout is not strided for x in tensors) or query.dtype not in planning.TYPES:
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return False
    if torch.is_autocast_enabled("cpu") or any(x.dtype != query.dtype for x in tensors[:3]) or min(x.dim() for x in tensors[:3]) < 2:
        return False
    return attn_mask is None or (attn_mask.dim() > 1 and attn_mask.dtype in (torch.bool, torch.float32, query.dtype))


def traced(function, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    if dropout_p == 0.0 and not (is_causal and attn_mask is not None) and traceable(query, key, value, attn_mask):
        return operator(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return function(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def extended(query, key, value, mask, causal, scale, gqa, dropout=0.0, softcap=0.0, window=None, sinks=None):
    """The same with what PyTorch's function has no argument for: a softcap, a window of so many keys up to the diagonal, sinks [heads]
    (or [..., heads, L, 1], left to PyTorch), a mask together with causal. Where libattn cannot do it, PyTorch's operations do."""
    if is_tracing_by_dynamo() or torch.compiler.is_compiling():
        if dropout == 0.0 and traceable(query, key, value, mask, sinks):
            return operator(query, key, value, mask, causal, scale, gqa, softcap, window, sinks)
        return composed(query, key, value, mask, causal, scale, gqa, dropout, softcap, window, sinks)
    result = DROPOUT if dropout else attend(query, key, value, mask, causal, scale, gqa, softcap, window, sinks)
    if type(result) is not Left:
        counts.take()
        return result
    counts.leave(result.reason)
    return composed(query, key, value, mask, causal, scale, gqa, dropout, softcap, window, sinks)


# ---- in place of torch.nn.functional.scaled_dot_product_attention ----

class Routing:
    """Whether torch.nn.functional's function is routed: while install() holds or any `with installed()` is open, in any thread."""

    def __init__(self):
        self.lock, self.wanted, self.open, self.placed = threading.RLock(), False, 0, None

    def settle(self):
        """Called with the lock held. What others put over ours meanwhile stays, and may call ours."""
        current = functional.scaled_dot_product_attention
        if not (self.wanted or self.open):
            if current is self.placed:
                functional.scaled_dot_product_attention = current.original
            self.placed = None
        elif current is not self.placed:
            functional.scaled_dot_product_attention = self.placed = route(current)


routing = Routing()


def enter_child():
    """Of a fork: the threads that held the locks are not in it, and its plans are others, see planning.in_child."""
    plans.clear()
    counts.lock, routing.lock = threading.RLock(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=enter_child)


def route(original):
    """original, by libattn where it can, as long as it is this one that is in place."""
    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        """torch.nn.functional.scaled_dot_product_attention, by libattn where it can; see libattn.torch."""
        if routing.placed is not here:  # what others put over it still calls it
            return pass_on(original, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if is_tracing_by_dynamo():
            return traced(original, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if dropout_p != 0.0:
            result = DROPOUT
        elif not (flash_wanted() and math_wanted()):
            result = BACKEND
        else:
            result = tried(query, key, value, attn_mask, is_causal, scale, enable_gqa)
            if type(result) is not Left:
                counts.take()
                return result
        if result is SUBCLASS and torch.compiler.is_compiling():
            return traced(original, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        counts.leave(result.reason)
        return pass_on(original, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    here = scaled_dot_product_attention
    here.original, here.__qualname__ = original, here.__name__
    here.__module__ = functional.__name__  # where pickle finds it by its name
    return here


def install():
    """Routes torch.nn.functional.scaled_dot_product_attention through libattn, in all threads, until uninstall(). Twice is once.

    Reaches code that looks the function up when it calls it: torch.nn.MultiheadAttention and TransformerEncoderLayer off their fast
    paths, Transformers' "sdpa", F.scaled_dot_product_attention. It cannot reach a name bound before (`from torch.nn.functional import
    scaled_dot_product_attention`), C++ (the fast paths of torch.nn's layers, torch.ops.aten), what torch.compile or torch.jit.script
    compiled before; and torch.jit.script cannot compile code that calls the function while it is routed."""
    with routing.lock:
        routing.wanted = True
        routing.settle()


def uninstall():
    """Undoes install(). An open `with installed()` keeps its routing until it ends."""
    with routing.lock:
        routing.wanted = False
        routing.settle()


@contextlib.contextmanager
def installed():
    """Routes as install() does while the block runs, in all threads. Blocks nest, and overlap between threads."""
    with routing.lock:
        routing.open += 1
        routing.settle()
    try:
        yield
    finally:
        with routing.lock:
            routing.open -= 1
            routing.settle()
