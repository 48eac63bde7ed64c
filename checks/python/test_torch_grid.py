"""The parameter grids of PyTorch's own tests of scaled_dot_product_attention on CPUs (pytorch/pytorch, test/test_transformers.py, 2026),
with their shapes, types, masks and tolerances: what its fused kernel is held to there, torch.nn.functional's function is here, with libattn
routed in. The reference is PyTorch's "math" way, as there.

Left out: nested tensors, dropout, gradcheck, and what is about the choice of a kernel and not about results. The first two grids have 256
and some 30,000 points; of each as many are run as it takes for every pair of values of two parameters to meet (grids.pairwise). Where
gradients are asked for, and for float64, PyTorch computes, as it is to, over fewer masks and groups: that takes it long."""
import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, bias, sdpa_kernel

import libattn.torch
from grids import names, pairwise, whole
from sdpa import TOLERANCES, assert_close, left, original, taken, unrouted

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
ALL, BOTH = [F64, F32, BF16, F16], [False, True]
GRADIENTS = {**TOLERANCES, F32: (1.25e-5, 5.25e-6), F16: (1e-1, 1e-1)}


def heads_inside(batch, heads, length, dim, dtype):
    """[batch, heads, length, dim], in memory [batch, length, heads, dim]."""
    return torch.randn(batch, length, heads, dim, dtype=dtype).transpose(1, 2)


def routed(q, k, v, *args, **options):
    """By libattn, or by PyTorch for one of the two reasons that these grids have."""
    def call():
        with libattn.torch.installed():
            return F.scaled_dot_product_attention(q, k, v, *args, **options)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return left("autograd records it", call)
    return left("dtype torch.float64", call) if q.dtype == F64 else taken(call)


def math_way(*args, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return original(*args, **options)


def compare(q, k, v, train=False, gradients=GRADIENTS, wide=False, **options):
    """Results, and gradients of their sum. wide: the reference on float32 copies of 16-bit tensors."""
    copies = [x.detach().clone(memory_format=torch.preserve_format) for x in (q, k, v)]
    leaves = [x.detach().requires_grad_(train) for x in (q, k, v)], [x.requires_grad_(train) for x in copies]
    out = routed(*leaves[0], **options)
    expected = math_way(*(x.float() if wide and q.dtype in (F16, BF16) else x for x in leaves[1]), **options)
    assert out.isfinite().all() and expected.isfinite().all()
    assert_close(out, expected.to(out.dtype))
    if train:
        out.sum().backward()
        expected.sum().backward()
        for ours, theirs in zip(*leaves):
            assert_close(ours.grad, theirs.grad, gradients)


PACKED = pairwise(dtype=ALL, batch=[2, 12], length=[267, 1030], heads=[1, 3], dim=[8, 16], causal=BOTH, train=BOTH)


@pytest.mark.parametrize("case", PACKED, ids=names(PACKED))
def test_packed(case):
    batch, length, heads, dim = (case[name] for name in ("batch", "length", "heads", "dim"))
    packed = torch.randn(batch, length, 3 * heads * dim, dtype=case["dtype"])
    q, k, v = (x.view(batch, length, heads, dim).transpose(1, 2) for x in packed.split(heads * dim, 2))
    compare(q, k, v, case["train"], TOLERANCES, wide=True, is_causal=case["causal"])


KEPT = [tuple(point.values()) for axes in (2, 4) for point in whole(**{str(i): [1, 0] for i in range(axes)})]  # 0: an axis of one element
SIZES = {"batch": [2, 12], "rows": [11, 514, 1030], "keys": [17, 514], "heads": [1, 3]}
MASKED = [*pairwise(dtype=[F32, F16, BF16], **SIZES, mask=["none", "causal", *KEPT], bool=BOTH, train=[False]),
          *pairwise(dtype=[F64], **SIZES, mask=["none", "causal", (1, 1), (0, 1, 0, 1)], bool=BOTH, train=[False]),
          *pairwise(dtype=ALL, **SIZES, mask=["none", "causal", (1, 1), (0, 1, 0, 1)], bool=BOTH, train=[True])]


@pytest.mark.parametrize("case", MASKED, ids=names(MASKED))
def test_masks(case):
    batch, heads, rows, keys = (case[name] for name in ("batch", "heads", "rows", "keys"))
    q, k, v = (heads_inside(batch, heads, n, 8, case["dtype"]) for n in (rows, keys, keys))
    mask = None
    if case["mask"] not in ("none", "causal"):
        shape = [n if kept else 1 for n, kept in zip((batch, heads, rows, keys)[-len(case["mask"]):], case["mask"])]
        mask = torch.randint(0, 2, shape, dtype=torch.bool) if case["bool"] else torch.randn(shape, dtype=case["dtype"])
    compare(q, k, v, case["train"], attn_mask=mask, is_causal=case["mask"] == "causal")


GROUPED = [*whole(dtype=ALL, heads=[(65, 5), (16, 4), (27, 1), (5, 1)], train=[False]), *whole(dtype=ALL, heads=[(5, 1)], train=[True])]


@pytest.mark.parametrize("case", GROUPED, ids=names(GROUPED))
def test_groups(case):
    dtype, (heads, heads_kv) = case["dtype"], case["heads"]
    q, k, v = (heads_inside(12, n, length, 8, dtype) for n, length in ((heads, 17), (heads_kv, 100), (heads_kv, 100)))
    compare(q, k, v, case["train"], {**TOLERANCES, F16: (1e-1, 1e-1), BF16: (1e-1, 1e-1)},
            attn_mask=torch.randn(12, heads, 17, 100, dtype=dtype), enable_gqa=True)


SMALL = [(3, None, False), (3, 2, False), (3, 2, True), (3, 3, False), (3, 3, True), (4, None, False), (4, 2, False), (4, 2, True),
         (4, 4, False), (4, 4, True)]


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("axes, mask_axes, causal", SMALL)
def test_small(axes, mask_axes, causal, batch, dtype):
    """By matrix products and softmax, one after the other. Rows that see nothing are NaN there, and 0 here."""
    lead = (batch, 2)[:axes - 2]
    q, k, v = (torch.randn(*lead, n, 6, dtype=dtype) for n in (4, 3, 3))
    mask = None
    if mask_axes is not None:
        shape = (*lead, 4, 3)[-mask_axes:]
        mask = torch.ones(shape, dtype=torch.bool).tril() if causal else torch.randint(0, 2, shape, dtype=torch.bool)
    hidden = torch.zeros(4, 3, dtype=torch.bool) if mask is None else ~mask
    weights = (q / math.sqrt(6) @ k.mT).masked_fill(hidden, -math.inf).softmax(-1)
    expected = (weights @ v).masked_fill(hidden.all(-1, keepdim=True), 0)
    out = routed(q, k, v, None, 0.0, True) if causal else routed(q, k, v, mask)
    torch.testing.assert_close(out, expected)


VARIANTS = [(16, 16, 128, 128, 16), (16, 16, 128, 256, 32), (16, 16, 256, 128, 32), (1, 1, 23, 56, 15)]


@pytest.mark.parametrize("batch, heads, rows, keys, dim", VARIANTS)
@pytest.mark.parametrize("make", [bias.causal_upper_left, bias.causal_lower_right])
def test_causal_variants(batch, heads, rows, keys, dim, make):
    """A CausalBias is the mask that it stands for; upper left, is_causal too."""
    q, k, v = (torch.rand(batch, heads, n, dim, dtype=F16) for n in (rows, keys, keys))
    if make is bias.causal_lower_right and rows > keys:
        with pytest.warns(UserWarning, match="will produce NaNs"):  # not here
            given = make(rows, keys)
    else:
        given = make(rows, keys)
    expected = original(q, k, v, given._materialize())
    with libattn.torch.installed():
        out = F.scaled_dot_product_attention(q, k, v, given)
    torch.testing.assert_close(out, expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(routed(q, k, v, given._materialize()), expected, atol=1e-3, rtol=1e-3)
    if make is bias.causal_upper_left:
        torch.testing.assert_close(routed(q, k, v, is_causal=True), expected, atol=1e-3, rtol=1e-3)


FULLY = whole(length=[32, 64, 128], dim=[16, 32], dtype=[F32, F16], train=BOTH)


@pytest.mark.parametrize("case", FULLY, ids=names(FULLY))
def test_fully_masked_rows(case):
    """Every fourth row sees nothing, the others every fifth key. Gradients of these rows are 0."""
    length = case["length"]
    q, k, v = (torch.rand(1, 1, length, case["dim"], dtype=case["dtype"], requires_grad=case["train"]) for _ in "qkv")
    index = torch.arange(length)
    mask = (index[:, None] % 5 == index % 5) & (index[:, None] % 4 != 0)
    out, expected = routed(q, k, v, mask[None, None]), math_way(q, k, v, mask[None, None])
    torch.testing.assert_close(out, expected, atol=5e-3, rtol=0)
    assert (out[:, :, ::4] == 0).all()
    if case["train"]:
        grads, theirs = (torch.autograd.grad(x.sum(), (q, k, v)) for x in (out, expected))
        torch.testing.assert_close(grads, theirs, atol=3e-3, rtol=0)
        assert (grads[0][:, :, ::4] == 0).all()


def test_band_of_infinities():
    """The band is made of -inf on both sides of it, some rows of blocks wholly."""
    full = torch.full((600, 600), -math.inf)
    mask = full.triu(1) + full.tril(-10)
    q, k, v = (heads_inside(1, 2, 600, 8, F32) for _ in "qkv")
    torch.testing.assert_close(routed(q, k, v, mask), math_way(q, k, v, mask))


@pytest.mark.parametrize("dtype", [F32, F16])
def test_infinities_and_nan(dtype):
    """An infinity in a query makes its row NaN and no other; NaN in all queries, all."""
    q, k, v = (torch.randn(1, 2, 4, 16, dtype=dtype) for _ in "qkv")
    q[0, 1, 2, 3] = math.inf
    wrong = routed(q, k, v).isnan()
    assert wrong[0, 1, 2].all() and wrong.sum() == 16
    assert routed(torch.full_like(q, math.nan), k, v).isnan().all()


def test_negative_scale():
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(routed(x, x, x, scale=-1 / 0.0001), (x @ x.mT / -0.0001).softmax(-1) @ x)


def test_products_beyond_half():
    x = torch.full((1, 32, 23, 80), 256.0, dtype=F16)
    assert torch.equal(routed(x, x, x), x)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("shape", [(0, 4, 10, 64), (2, 4, 0, 64), (2, 4, 10, 0), (0, 0, 0, 0), (2, 2, 0, 8)])
def test_zero_sizes(shape, dtype):
    q, k, v = (torch.zeros(*shape[:3], dim, dtype=dtype, requires_grad=True) for dim in (shape[3], shape[3], 32))
    with torch.no_grad(), libattn.torch.installed():
        assert torch.equal(F.scaled_dot_product_attention(q, k, v), torch.zeros(*shape[:3], 32, dtype=dtype))
    routed(q, k, v).sum().backward()
    assert all(x.grad.shape == x.shape for x in (q, k, v))


@pytest.mark.parametrize("lead", [(1,), (1, 1), (2, 3, 1)])
def test_size_of_the_result(lead):
    assert routed(torch.randn(*lead, 16, 32), torch.randn(*lead, 16, 32), torch.randn(*lead, 16, 24)).shape == (*lead, 16, 24)


def test_refused():
    one, other = torch.randn(1, 4, 8, 16), torch.randn(1, 4, 8, 16).half()
    with libattn.torch.installed():
        with pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(one, other, other)
        with pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(one[0, 0, 0], one[0, 0], one[0, 0])
        with pytest.raises(ValueError, match="CausalBias should not be used with causal=True"):
            F.scaled_dot_product_attention(other, other, other, bias.causal_upper_left(8, 8), is_causal=True)
