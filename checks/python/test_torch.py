"""libattn.torch's function against PyTorch's own and against float64. test_torch_routing.py has it in the place of PyTorch's."""
import functools
import itertools
import logging
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, bias, sdpa_kernel

import libattn.torch
from grids import names, pairwise
from libattn.torch import extended, scaled_dot_product_attention as sdpa
from sdpa import assert_close, assert_exact, definition, left, original, plain, taken, unrouted

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
GRAD, SUBCLASS, MODE = "autograd records it", "a subclass of Tensor", "a mode that intercepts operations, or torch.jit.trace"
MEMORY = "elements without memory, or at addresses that are no multiples of their size"
DEVICE, TRANSFORM = "not plain tensors in the CPU's memory", "vmap, another transform of torch.func, or forward-mode gradients"
BACKEND, ARGUMENTS = "a backend chosen by sdpa_kernel", "an argument of another type"


def rand(shape, dtype=F32, layout="dense"):
    """Normal numbers, laid out so; what lies between the elements is NaN."""
    if layout == "expanded":
        return torch.randn((1, *shape[1:])).to(dtype).expand(shape)
    return lay(torch.randn(shape).to(dtype), layout)


def lay(x, layout):
    """The same values at other places in memory."""
    if layout == "heads inside rows" and x.dim() > 2:
        return x.transpose(-2, -3).contiguous().transpose(-2, -3)
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "axes reversed":
        order = tuple(reversed(range(x.dim())))
        return x.permute(order).contiguous().permute(order)
    if layout == "sliced":
        wide = torch.full([n + 3 for n in x.shape], True if x.dtype == torch.bool else math.nan, dtype=x.dtype)
        return wide[tuple(slice(2, n + 2) for n in x.shape)].copy_(x)
    return x


def agree(query, key, value, mask=None, causal=False, scale=None, gqa=False):
    """Taken, exact within the bound, and where in memory PyTorch would put it."""
    out = taken(sdpa, query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=gqa)
    assert_exact(out, query, key, value, mask, causal, scale, gqa)
    theirs = original(query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=gqa)
    assert out.dtype == query.dtype and out.stride() == theirs.stride() and not out.requires_grad
    if not (causal and scale is not None and scale <= 0):  # there PyTorch hides by -inf · scale: NaN, or keys that are not hidden
        assert_close(out, theirs)
    return out


# ---- shapes, strides, masks ----

AXES = [((5, 8), (7, 8), (7, 8)), ((3, 5, 8), (3, 7, 8), (3, 7, 8)), ((3, 5, 8), (3, 7, 8), (3, 7, 4)),
        ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)), ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 12)),
        ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 8)),
        ((2, 1, 2, 3, 5, 8), (2, 1, 2, 3, 7, 8), (2, 1, 2, 3, 7, 1)), ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
        ((2, 3, 1, 80), (2, 3, 300, 80), (2, 3, 300, 80)), ((1, 2, 70, 64), (1, 2, 600, 64), (1, 2, 600, 64))]
BROADCAST = [((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)), ((2, 3, 5, 8), (1, 3, 7, 8), (2, 3, 7, 8)),
             ((2, 1, 5, 8), (2, 3, 7, 8), (2, 1, 7, 8)), ((2, 3, 5, 8), (3, 7, 8), (7, 8)), ((5, 8), (2, 3, 7, 8), (3, 7, 6)),
             ((1, 5, 8), (3, 7, 8), (3, 7, 8)), ((2, 1, 4, 5, 8), (1, 3, 1, 7, 8), (2, 3, 4, 7, 6)),
             ((3, 1, 5, 8), (2, 1, 4, 7, 8), (1, 3, 4, 7, 8)), ((2, 3, 5, 8), (2, 3, 7, 8), (1, 1, 7, 8))]
GROUPS = [((6, 5, 8), (2, 7, 8), (2, 7, 8)), ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)), ((2, 6, 5, 8), (2, 1, 7, 8), (2, 1, 7, 4)),
          ((2, 6, 5, 8), (2, 6, 7, 8), (2, 6, 7, 8)), ((2, 6, 5, 8), (1, 3, 7, 8), (2, 3, 7, 8)), ((6, 5, 8), (2, 3, 7, 8), (3, 7, 8)),
          ((2, 1, 6, 5, 8), (2, 3, 2, 7, 8), (1, 3, 2, 7, 8))]
LAYOUTS = ["dense", "heads inside rows", "sliced", "transposed", "axes reversed", "expanded"]
SHAPES_GRID = pairwise(shapes=[(s, False) for s in AXES + BROADCAST] + [(s, True) for s in GROUPS], dtype=[F32, F16, BF16], q=LAYOUTS,
                       k=LAYOUTS, v=LAYOUTS, causal=[False, True])


@pytest.mark.parametrize("case", SHAPES_GRID, ids=range(len(SHAPES_GRID)))
def test_shapes_and_strides(case):
    shapes, gqa = case["shapes"]
    agree(*(rand(shape, case["dtype"], case[name]) for name, shape in zip("qkv", shapes)), causal=case["causal"], gqa=gqa)


def test_two_leading_axes_of_copies():
    """Neither query's own leading axes nor those of a dense copy can be stepped through as one; the mask's cannot either."""
    q, k, v = torch.randn(1, 3, 3, 5, 8), torch.randn(1, 1, 1, 8).expand(1, 3, 1, 7, 8), torch.randn(2, 1, 3, 3, 8, 7).mT
    agree(q, k, v, torch.randn(3, 1, 5, 7))
    agree(rand((3, 2, 2, 5, 8), F32, "axes reversed"), *(torch.randn(3, 2, 2, 7, 8) for _ in "kv"), torch.rand(3, 2, 1, 5, 1) < 0.5)


MASKS = [(5, 7), (1, 7), (5, 1), (1, 1), (3, 5, 7), (1, 5, 7), (3, 1, 7), (3, 1, 1), (2, 3, 5, 7), (1, 3, 5, 7), (2, 1, 5, 7), (2, 1, 1, 7),
         (2, 3, 1, 1), (1, 1, 5, 1), (1, 1, 1, 1)]
MASK_GRID = pairwise(shape=MASKS, kind=["bool", "float32", "own"], dtype=[F32, F16, BF16], layout=LAYOUTS, heads=[1, 3], dim_v=[8, 6],
                     gqa=[False, True])


def make_mask(shape, kind, dtype, layout="dense"):
    """A third is hidden."""
    mask, seen = rand(shape, F32, layout), torch.rand(shape) < 0.7
    if kind == "bool":
        return lay(seen, layout) if layout != "expanded" else mask > -0.5
    mask = mask.to(F32 if kind == "float32" else dtype)
    return mask if layout == "expanded" else lay(mask.masked_fill(~seen, -math.inf), layout)


@pytest.mark.parametrize("case", MASK_GRID, ids=range(len(MASK_GRID)))
def test_masks(case):
    dtype, gqa = case["dtype"], case["gqa"]
    heads, heads_kv = (3, 1) if gqa else (3, case["heads"])
    shapes = (2, heads, 5, 8), (2, heads_kv, 7, 8), (2, heads_kv, 7, case["dim_v"])
    q, k, v = (rand(shape, dtype, "heads inside rows") for shape in shapes)
    agree(q, k, v, make_mask(case["shape"], case["kind"], dtype, case["layout"]), gqa=gqa)


@pytest.mark.parametrize("rank", [2, 3, 5])
@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_masks_of_other_ranks(rank, kind):
    lead = (2, 2, 3)[:rank - 2]
    q, k, v = (torch.randn(*lead, n, 8) for n in (5, 7, 7))
    for axes, ones in itertools.product(range(rank - 1), range(1 << rank)):
        shape = [1 if ones >> i & 1 else n for i, n in enumerate((*lead, 5, 7))][axes:]
        agree(q, k, v, make_mask(shape, kind, F32))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("rows, keys", [(5, 7), (7, 5), (1, 9), (9, 1), (70, 300), (300, 70)])
def test_causal_is_from_the_top_left(rows, keys, dtype):
    out = agree(*(rand((2, 2, n, 16), dtype) for n in (rows, keys, keys)), causal=True)
    assert out.isfinite().all()


@pytest.mark.parametrize("scale", [None, 0.0, -0.3, 2.5, 1, True, np.float64(0.5), 1e-30, 30.0])
@pytest.mark.parametrize("causal", [False, True])
def test_scales(plain, scale, causal):
    agree(*plain, scale=scale, causal=causal)
    agree(*(x.half() for x in plain), scale=scale, causal=causal)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("kind", ["bool", "float32", "own"])
def test_rows_that_see_nothing_are_zero(plain, kind, dtype):
    seen = torch.rand(5, 7) < 0.6
    seen[1], seen[4] = False, False
    mask = seen if kind == "bool" else torch.zeros(5, 7, dtype=F32 if kind == "float32" else dtype).masked_fill(~seen, -math.inf)
    out = agree(*(x.to(dtype) for x in plain), mask)
    assert (out[..., [1, 4], :] == 0).all() and (out[..., [0, 2, 3], :] != 0).all()


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("hide", ["causal", "bool", "float"])
def test_what_is_hidden_never_matters(plain, hide, dtype):
    q, k, v = (x.to(dtype) for x in plain)
    options = {"is_causal": True} if hide == "causal" else {"attn_mask": torch.ones(5, 7, dtype=torch.bool).tril()}
    if hide == "float":
        options = {"attn_mask": torch.zeros(5, 7).masked_fill(~options["attn_mask"], -math.inf)}
    clean = sdpa(q, k, v, **options)
    k[:, :, 3:], v[:, :, 3:] = math.nan, math.inf
    out = sdpa(q, k, v, **options)
    assert torch.equal(out[:, :, :3], clean[:, :, :3])


EMPTY = [((0, 3, 5, 8), (0, 3, 7, 8), (0, 3, 7, 8)), ((2, 0, 5, 8), (2, 0, 7, 8), (2, 0, 7, 8)), ((2, 3, 0, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
         ((2, 3, 5, 8), (2, 3, 0, 8), (2, 3, 0, 8)), ((2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 4)), ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 0)),
         ((0, 8), (0, 8), (0, 8))]


@pytest.mark.parametrize("shapes", EMPTY)
def test_empty_tensors(shapes):
    q, k, v = map(torch.ones, shapes)
    out = left("no elements", sdpa, q, k, v)
    theirs = original(q, k, v)
    assert torch.equal(out, theirs) and out.stride() == theirs.stride()


def test_same_bits_again(plain):
    """The same bits from a plan that is new and from one that is kept, whatever the call before; and no input is written to."""
    copies = [x.clone() for x in plain]
    first = sdpa(*plain)
    libattn.torch.plans.clear()
    assert all(torch.equal(sdpa(*plain), first) for _ in range(3)) and all(map(torch.equal, plain, copies))
    assert not torch.equal(sdpa(*plain, is_causal=True), first) and not torch.equal(sdpa(*plain, scale=0.3), first)
    assert torch.equal(sdpa(*plain), first)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_uses_the_threads_that_pytorch_has(threads):
    q = torch.randn(1, 8, 200, 64)
    expected, before = sdpa(q, q, q), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        libattn.torch.plans.clear()
        assert torch.equal(sdpa(q, q, q), expected)
        assert [plan.context.describe().threads for plan in libattn.torch.plans.values()] == [threads]
    finally:
        torch.set_num_threads(before)


# ---- what is left to PyTorch, and refused ----

def test_dropout(plain):
    with pytest.raises(ValueError, match="dropout_p: must be 0, not 0.5; libattn computes attention for inference only"):
        sdpa(*plain, dropout_p=0.5)
    with libattn.torch.installed():
        torch.manual_seed(3)
        out = left("dropout", F.scaled_dot_product_attention, *plain, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(out, original(*plain, dropout_p=0.5))


@pytest.mark.parametrize("which", range(4))
def test_gradients_are_pytorchs(plain, which):
    """One of query, key, value and mask requires them, or a product that does."""
    tensors = [*plain, torch.randn(2, 3, 5, 7)]
    grads = []
    for function in (functools.partial(left, GRAD, sdpa), original):
        leaf = tensors[which].clone().requires_grad_()
        given = [*tensors[:which], leaf * 2, *tensors[which + 1:]]
        out = function(*given)
        out.square().sum().backward()
        grads.append((out.detach(), leaf.grad))
    assert all(map(torch.equal, *grads))


def test_without_gradients(plain):
    q, k, v = (torch.nn.Parameter(x) for x in plain)
    mask = torch.nn.Parameter(torch.randn(5, 7))
    with torch.no_grad():
        agree(q, k, v, mask)
    with torch.inference_mode():
        out = agree(q, k, v, mask)
        assert out.is_inference()
        agree(*(x.clone() for x in (q, k, v)))
    agree(q.detach(), k.detach(), v.detach(), mask.detach())
    left(GRAD, sdpa, q, k, v)


def test_a_reason_is_logged_once(plain, caplog):
    caplog.set_level(logging.INFO, "libattn")
    q, k, v = (x.clone().requires_grad_() for x in plain)
    for _ in range(3):
        sdpa(q, k, v)
    sdpa(*(x.double() for x in plain))
    assert [record.getMessage() for record in caplog.records] == [
        f"scaled_dot_product_attention: left to PyTorch: {reason} (said once)" for reason in (GRAD, "dtype torch.float64")]
    libattn.torch.reset_stats()
    sdpa(q, k, v)
    assert len(caplog.records) == 3


class Subclass(torch.Tensor):
    pass


def test_other_tensors(plain):
    q, k, v = plain
    def same(reason, *args, **options):
        torch.testing.assert_close(left(reason, sdpa, *args, **options), original(*args, **options), equal_nan=True)
    same("dtype torch.float64", *(x.double() for x in plain))
    assert left(DEVICE, sdpa, *(x.to("meta") for x in plain)).is_meta
    same(DEVICE, torch.view_as_complex(torch.randn(2, 3, 5, 8, 2)).conj().imag, k, v)
    same(DEVICE, q, k, v, torch.view_as_complex(torch.randn(5, 7, 2)).conj().imag)
    same("a scale that is not finite", q, k, v, scale=math.nan)
    same("scale: must be finite", q, k, v, scale=1e39)
    same(ARGUMENTS, q, k, v, scale=torch.tensor(0.5))
    same("a number of heads that differs between key and value", torch.randn(2, 6, 5, 8), k, v[:, :2], enable_gqa=True)
    for given in ((q.as_subclass(Subclass), k, v), (q, k, v.as_subclass(Subclass)), (q, k, v, torch.zeros(5, 7).as_subclass(Subclass))):
        out = left(SUBCLASS, sdpa, *given)
        assert type(out) is Subclass and torch.equal(out.as_subclass(torch.Tensor), original(*(x.as_subclass(torch.Tensor) for x in given)))


def misaligned(x):
    """Its elements at addresses that are no multiples of their size, as files are mapped."""
    bytes_ = torch.zeros(x.numel() * x.itemsize + 1, dtype=torch.uint8)
    bytes_[1:] = x.flatten().view(torch.uint8)
    return torch.frombuffer(bytes_.numpy().data, dtype=x.dtype, offset=1).view(x.shape)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_that_only_pytorch_takes(plain, place, dtype):
    given = [x.to(dtype) for x in (*plain, torch.randn(5, 7))]
    want = original(*given)
    given[place] = misaligned(given[place])
    torch.testing.assert_close(left(MEMORY, sdpa, *given), want, equal_nan=True)
    given[place] = torch._efficientzerotensor(given[place].shape, dtype=dtype)
    assert left(MEMORY, sdpa, *given).shape == want.shape  # its numbers PyTorch makes of whatever lies somewhere


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    q, k, v = (torch.nested.nested_tensor([torch.randn(3, n, 8) for n in lengths]) for lengths in ((5, 4), (7, 2), (7, 2)))
    out = left(DEVICE, sdpa, q, k, v)
    assert out.is_nested
    for ours, theirs in zip(out.unbind(), original(q, k, v).unbind()):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("keys", [5, 7])
def test_causal_bias(keys):
    """Upper left is the same as is_causal, which is taken; lower right is a mask."""
    q, k, v = (torch.randn(2, 3, n, 8) for n in (5, keys, keys))
    for make, diagonal in ((bias.causal_upper_left, 0), (bias.causal_lower_right, keys - 5)):
        given, mask = make(5, keys), torch.ones(5, keys, dtype=torch.bool).tril(diagonal)
        assert_exact(left(SUBCLASS, sdpa, q, k, v, given), q, k, v, mask)
        with libattn.torch.installed():
            libattn.torch.reset_stats()
            assert_exact(F.scaled_dot_product_attention(q, k, v, given), q, k, v, mask)
            assert libattn.torch.stats() == {"taken": 1, "left": {SUBCLASS: 1}}
        with pytest.raises(ValueError, match="CausalBias should not be used with causal=True"):
            sdpa(q, k, v, given, is_causal=True)


def test_backends(plain):
    """A backend that a program chooses is the one that it gets."""
    with libattn.torch.installed():
        for backends in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
            with sdpa_kernel(backends):
                out = left(BACKEND, F.scaled_dot_product_attention, *plain)
                assert torch.equal(out, original(*plain))
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
            taken(F.scaled_dot_product_attention, *plain)


def test_autocast(plain):
    with torch.autocast("cpu", BF16):
        out = left("autocast to another dtype", sdpa, *plain)
        assert out.dtype == BF16 and torch.equal(out, original(*plain))
        assert taken(sdpa, *(x.bfloat16() for x in plain)).dtype == BF16
        left("autocast to another dtype", sdpa, *(x.half() for x in plain))
    taken(sdpa, *plain)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_transforms(plain):
    """torch.func's, forward-mode gradients, and modes that see every operation, see PyTorch's own."""
    q, k, v = plain
    close = torch.testing.assert_close
    close(left(TRANSFORM, torch.vmap(sdpa), q, k, v), original(q, k, v))
    close(left(TRANSFORM, torch.vmap(sdpa, (None, 0, 0)), q[0], k, v), original(q, k, v)[:1].expand(2, -1, -1, -1).clone().copy_(
        torch.stack([original(q[0], k[i], v[i]) for i in range(2)])))
    grad = lambda function: torch.func.grad(lambda q: function(q, k, v).sum())(q)
    libattn.torch.reset_stats()
    close(grad(sdpa), grad(original))
    assert libattn.torch.stats()["taken"] == 0
    with sdpa_kernel(SDPBackend.MATH):  # the only one with forward-mode gradients
        jvp = lambda function: torch.func.jvp(lambda q: function(q, k, v), (q,), (k[..., :5, :],))
        close(jvp(sdpa), jvp(original))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
            out = left(TRANSFORM, sdpa, dual, k, v)
            assert torch.autograd.forward_ad.unpack_dual(out).tangent is not None


def test_modes(plain):
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    assert "scaled_dot_product" in make_fx(lambda *x: sdpa(*x))(*plain).code
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in plain]
        assert left(SUBCLASS, sdpa, *fakes).shape == (2, 3, 5, 8)
    def note(self, function, types, args=(), kwargs=None):
        seen.append(function)
        return function(*args, **(kwargs or {}))
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    for mode, name, wanted in ((TorchFunctionMode, "__torch_function__", original), (TorchDispatchMode, "__torch_dispatch__", fused)):
        seen = []
        with type("Watch", (mode,), {name: note})():
            left(MODE, sdpa, *plain)
        assert wanted in seen
    with torch.device("meta"):
        assert taken(sdpa, *plain).is_cpu


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_jit_trace(plain):
    program = left(MODE, lambda: torch.jit.trace(lambda q, k, v: sdpa(q, k, v), plain, check_trace=False))
    other = tuple(torch.randn_like(x) for x in plain)
    assert torch.equal(program(*other), original(*other))


Q, K = torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 7, 8)
WRONG = {
    "no tensor": ((None, K, K), {}), "a list": (([1.0], K, K), {}), "one axis": ((Q[0, 0, 0], K, K), {}),
    "two axes and groups": ((Q[0, 0], K[0, 0], K[0, 0]), {"enable_gqa": True}), "dtypes": ((Q, K.half(), K.half()), {}),
    "integers": ((Q.int(), K.int(), K.int()), {}), "devices": ((Q, K.to("meta"), K), {}), "sparse": ((Q.to_sparse(), K, K), {}),
    "dim": ((Q, K[..., :4], K), {}), "heads": ((Q, K[:, :2], K[:, :2]), {}), "batch": ((Q, K.expand(3, 2, 3, 7, 8)[:, 0], K), {}),
    "groups": ((Q, K[:, :2], K[:, :2]), {"enable_gqa": True}), "integer mask": ((Q, K, K, torch.ones(5, 7, dtype=torch.int64)), {}),
    "half mask": ((Q, K, K, torch.ones(5, 7).half()), {}), "mask of one axis": ((Q, K, K, torch.ones(7)), {}),
    "mask of five axes": ((Q, K, K, torch.ones(1, 1, 1, 5, 7)), {}), "mask's keys": ((Q, K, K, torch.ones(5, 6)), {}),
    "mask's batch": ((Q, K, K, torch.ones(3, 1, 5, 7)), {}), "mask of value's heads": ((Q[:, :1], K[:, :1], K, torch.ones(3, 5, 7)), {}),
    "mask of value's axes": ((Q[0, 0], K[0, 0], K, torch.ones(3, 5, 7)), {}), "text as scale": ((Q, K, K), {"scale": "1"}),
    "complex scale": ((Q, K, K), {"scale": 1j}), "huge scale": ((Q, K, K), {"scale": 10**400}),
    "number as causal": ((Q, K, K), {"is_causal": 1}), "None as causal": ((Q, K, K), {"is_causal": None}),
    "number as groups": ((Q, K, K), {"enable_gqa": 1}), "too many": ((Q, K, K, None, 0.0, False, 0.5), {}),
    "unknown": ((Q, K, K), {"softcap": 1.0})}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_pytorchs(name):
    args, options = WRONG[name]
    with pytest.raises(Exception) as theirs:
        original(*args, **options)
    with libattn.torch.installed():
        for function in (sdpa, F.scaled_dot_product_attention):
            with pytest.raises(theirs.type) as ours:
                function(*args, **options)
            assert str(ours.value) == str(theirs.value)


def test_errors_of_our_own(plain):
    """Where PyTorch's ways disagree, or do what nobody means."""
    q, k, v = plain
    with pytest.raises(RuntimeError, match="attn_mask must not be given when is_causal=True"):
        sdpa(q, k, v, torch.ones(5, 7), is_causal=True)
    with pytest.raises(RuntimeError, match=r"the same length, not 7 and 6; key is \(2, 3, 7, 8\) and value \(2, 3, 6, 8\)"):
        sdpa(q, k, v[:, :, :6])
    with pytest.raises(RuntimeError, match=r"must have heads; key is \(2, 0, 7, 8\)"):
        sdpa(q, k[:, :0], v[:, :0], enable_gqa=True)
    assert libattn.torch.stats() == {"taken": 0, "left": {}}
    with libattn.torch.installed():
        mask = torch.zeros(5, 7)
        out = left("both attn_mask and is_causal", F.scaled_dot_product_attention, q, k, v, mask, is_causal=True)
    assert torch.equal(out, original(q, k, v, mask, is_causal=True))


# ---- what PyTorch's function has no argument for ----

EXTENDED = pairwise(softcap=[0.0, 1.5], window=[None, 1, 3, 99], sinks=[False, True], mask=[None, "bool", "float32", "own"],
                    causal=[False, True], gqa=[False, True], dtype=[F32, F16, BF16], lengths=[(5, 7), (7, 5), (1, 9)])


@pytest.mark.parametrize("case", EXTENDED, ids=names(EXTENDED))
def test_extended(case):
    """libattn's, and what is made of PyTorch's operations where it cannot, both by the definition."""
    (rows, keys), heads = case["lengths"], 2 if case["gqa"] else 6
    q, k, v = (rand(shape, case["dtype"]) for shape in ((2, 6, rows, 8), (2, heads, keys, 8), (2, heads, keys, 4)))
    mask = None if case["mask"] is None else make_mask((2, 1, rows, keys), case["mask"], case["dtype"])
    sinks = torch.randn(6).to(case["dtype"]) if case["sinks"] else None
    options = {"softcap": case["softcap"], "window": case["window"], "sinks": sinks}
    args = (q, k, v, mask, case["causal"], 0.4, case["gqa"])
    assert_exact(taken(extended, *args, **options), *args, **options)
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    mask = mask if mask is None or mask.dtype == torch.bool else mask.double()
    args = (q, k, v, mask, case["causal"], 0.4, case["gqa"])
    out = left(GRAD, extended, *args, **options)
    torch.testing.assert_close(out, definition(*args, **options)[0])
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_extended_dropout(plain):
    torch.manual_seed(3)
    out = left("dropout", extended, *plain, None, False, None, False, 0.5, window=3)
    torch.manual_seed(3)
    again = extended(*plain, None, False, None, False, 0.5, window=3)
    assert torch.equal(out, again) and not torch.equal(out, extended(*plain, None, False, None, False, window=3))


def test_sinks_are_one_for_each_head(plain):
    reason = "sinks that are not one for each head"
    for sinks in (torch.zeros(2), torch.zeros(3, device="meta")):
        with pytest.raises((RuntimeError, NotImplementedError)):
            left(reason, extended, *plain, None, False, None, False, sinks=sinks)
        assert libattn.torch.stats() == {"taken": 0, "left": {reason: 1}}
    gradient = torch.zeros(3, requires_grad=True)
    left(GRAD, extended, *plain, None, False, None, False, sinks=gradient).sum().backward()
    assert gradient.grad.abs().min() > 0
