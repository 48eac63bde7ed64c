"""The parameter grid that MLX's own tests of mx.fast.scaled_dot_product_attention go through (ml-explore/mlx, python/tests/
test_fast_sdpa.py, 2026), with their shapes, types, masks and tolerances, against float64. Left out: gradients, which are not offered, and
what is about MLX's choice of a kernel and not about results. The grids are walked whole."""
import math

import ml_dtypes
import numpy as np
import pytest

import adapters
from grids import names, whole

F16, F32, BF16 = np.float16, np.float32, ml_dtypes.bfloat16
ROWS = 256  # rows of a head that are judged, spread evenly; all are computed


def normal(random, shape, dtype=F32, scale=1.0):
    return (scale * random.standard_normal(shape, F32)).astype(dtype)


def uniform(random, shape, dtype=F32, high=1.0):
    return (high * random.random(shape, F32)).astype(dtype)


def log(mask):
    """0 where true, minus infinity where false."""
    return np.where(mask, F32(0), F32(-np.inf))


def judged(rows):
    return np.unique(np.linspace(0, rows - 1, min(rows, ROWS)).round().astype(int))


def reference(q, k, v, scale, mask, sinks, rows):
    """The rows in float64. A row that sees nothing is 0."""
    heads_q, len_q, heads_kv, len_k = q.shape[1], q.shape[2], k.shape[1], k.shape[2]
    out = np.empty((q.shape[0], heads_q, len(rows), v.shape[3]))
    seen = np.broadcast_to(True, (1, 1, len_q, len_k))
    bias = np.zeros((1, 1, 1, 1))
    if isinstance(mask, str):
        seen = (np.arange(len_k) <= np.arange(len_q)[:, None] + len_k - len_q)[None, None]
    elif mask is not None and mask.dtype == bool:
        seen = np.broadcast_to(mask, (q.shape[0], heads_q, len_q, len_k))
    elif mask is not None:
        bias = np.broadcast_to(mask, (q.shape[0], heads_q, len_q, len_k))
    pick = lambda x, b, h: x[b % x.shape[0], h % x.shape[1]]
    for b in range(q.shape[0]):
        for h in range(heads_q):
            g = h // (heads_q // heads_kv)
            scores = scale * (q[b, h, rows].astype(float) @ k[b, g].astype(float).T)
            added = pick(bias, b, h)
            scores = scores + (added if len(added) == 1 else added[rows]).astype(float)
            scores[~pick(seen, b, h)[rows]] = -np.inf
            sink = -np.inf if sinks is None else float(sinks[h])
            top = np.maximum(scores.max(1, keepdims=True), sink)
            top[np.isneginf(top)] = 0
            weights = np.exp(scores - top)
            total = weights.sum(1, keepdims=True) + np.exp(sink - top)
            out[b, h] = weights @ v[b, g].astype(float) / np.where(total == 0, 1, total)
    return out


def excess(q, k, v, scale, mask=None, sinks=None, *, atol, rtol=1e-5, skip=0, attention=adapters.mlx_attention):
    """The largest |out - reference| - rtol |reference| over atol: MLX's rule holds where it is at most 1. The first rows can be skipped."""
    out = attention(q, k, v, scale=scale, mask=mask, **({} if sinks is None else {"sinks": sinks}))
    assert out.dtype == q.dtype and out.shape == (*q.shape[:3], v.shape[3])
    rows = judged(q.shape[2])
    rows = rows[rows >= skip]
    expected = reference(q, k, v, scale, mask, sinks, rows)
    result = out[:, :, rows].astype(float)
    assert np.isfinite(result).all()
    return float(((np.abs(result - expected) - rtol * np.abs(expected)) / atol).max())


def inputs(shape, dtype, mask, transpose):
    batch, len_q, len_k, dim, heads_q, heads_kv = shape
    random = np.random.default_rng(0)
    def tensor(heads, length, high):
        if transpose:
            return uniform(random, (batch, length, heads, dim), dtype, high).transpose(0, 2, 1, 3)
        return uniform(random, (batch, heads, length, dim), dtype, high)
    scale = 1 / math.sqrt(dim)
    q, k, v = tensor(heads_q, len_q, 0.5), tensor(heads_kv, len_k, 0.5), tensor(heads_kv, len_k, scale)
    full = (batch, heads_q, len_q, len_k)
    if mask == "additive":
        mask = uniform(random, full, dtype, 0.5)
    elif mask == "bool":
        mask = uniform(random, full) < 0.5
    return q, k, v, scale, mask


MASKS = [None, "additive", "bool", "causal"]
SHAPES = [(1, 20, 20, 64, 3, 3), (1, 63, 63, 64, 24, 24), (1, 129, 129, 64, 24, 24), (1, 400, 400, 64, 24, 24),
          (1, 128, 128, 64, 32, 32), (1, 64, 128, 64, 32, 32), (1, 65, 128, 64, 32, 8), (1, 64, 127, 64, 32, 8),
          (1, 65, 127, 64, 32, 8), (1, 127, 65, 64, 32, 8), (1, 128, 128, 128, 32, 8), (1, 64, 128, 128, 32, 8),
          (1, 65, 127, 128, 32, 8), (1, 127, 65, 128, 32, 8)]
SHAPES += [(1, 1, length, 128, 32, heads) for length in (7, 9, 32, 63, 67, 129, 400, 2000) for heads in (32, 8)]
GRID = whole(shape=SHAPES, mask=MASKS, transpose=[False, True], dtype=[F16, F32])
DIMS = whole(dim=[72, 96], len_q=[64, 65], len_k=[128, 127], dtype=[F16, BF16, F32], mask=MASKS)


@pytest.mark.parametrize("case", GRID, ids=names(GRID))
def test_shapes(case):
    q, k, v, scale, mask = inputs(case["shape"], case["dtype"], case["mask"], case["transpose"])
    tolerance = 2e-5 if case["dtype"] is F32 else 3e-4
    hidden = max(0, q.shape[2] - k.shape[2]) if case["mask"] == "causal" else 0  # rows that MLX leaves undefined
    assert excess(q, k, v, scale, mask, atol=tolerance, rtol=tolerance, skip=hidden) <= 1


@pytest.mark.parametrize("case", DIMS, ids=names(DIMS))
def test_head_dims(case):
    q, k, v, scale, mask = inputs((1, case["len_q"], case["len_k"], case["dim"], 8, 2), case["dtype"], case["mask"], False)
    tolerance = {F32: 1e-5, BF16: 5e-3, F16: 3e-4}[case["dtype"]]
    assert excess(q, k, v, scale, mask, atol=tolerance, rtol=tolerance) <= 1


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("len_q, len_k, room", [(2048, 2048, None), (2049, 2049, None), (2048, 2560, None), (2049, 2560, None),
                                                (2049, 2049, 2304), (2048, 2500, 2560), (1031, 2049, 2304)])
def test_head_dim_256(len_q, len_k, room, dtype):
    """Keys cut from a longer cache, behind which lie large numbers."""
    random = np.random.default_rng(0)
    q = normal(random, (1, 8, len_q, 256), dtype, 0.5)
    k, v = (normal(random, (1, 2, room or len_k, 256), F32, loud) for loud in (1e2, 1e3))
    for cache in (k, v):
        cache[:, :, :len_k] = normal(random, (1, 2, len_k, 256), F32, 0.5)
    k, v = (cache.astype(dtype)[:, :, :len_k] for cache in (k, v))
    tolerance = 5e-3 if dtype is BF16 else 1e-3 if len_q >= 2048 else 1e-4
    assert excess(q, k, v, 256**-0.5, "causal", atol=tolerance, rtol=tolerance) <= 1


def few_rows_masks(random, heads, length):
    tail = np.array([True] * (length - 10) + [False] * 10)
    some = [uniform(random, (heads, 1, length)), uniform(random, (length, 1, heads)).T]
    return {"none": None, "true": np.array(True), "tail": tail, "bool": some[0] > 0.2, "bool transposed": some[1] > 0.2,
            "additive": some[0], "additive transposed": some[1], "log": log(some[0] > 0.2), "log transposed": log(some[1] > 0.2),
            "causal": "causal"}


FEW = [(rows, heads, length, order, mask) for rows, heads in ((1, 4), (8, 8)) for length in (43, 4096)
       for order in ("plain", "swapped keys", "swapped rows") for mask in few_rows_masks(np.random.default_rng(0), heads, 43)]


@pytest.mark.parametrize("rows, heads, length, order, mask", FEW)
def test_few_rows(rows, heads, length, order, mask):
    random = np.random.default_rng(0)
    shape_q, shape_kv = (1, heads, rows, 64), (1, 1, length, 64)
    def tensor(shape, swapped):
        if swapped:
            return normal(random, (shape[0], shape[2], shape[1], shape[3]), F32, 0.5).swapaxes(1, 2)
        return normal(random, shape, F32, 0.5)
    q = tensor(shape_q, order == "swapped rows")
    k, v = (tensor(shape_kv, order == "swapped keys") for _ in "kv")
    assert excess(q, k, v, 1.0, few_rows_masks(random, heads, length)[mask], atol=1e-4, rtol=1e-4) <= 1


@pytest.mark.parametrize("length", [8192, 8201])
@pytest.mark.parametrize("heads_q, heads_kv, dim", [(32, 4, 128), (64, 8, 64)])
def test_one_row_grouped(heads_q, heads_kv, dim, length):
    random = np.random.default_rng(0)
    q = normal(random, (1, heads_q, 1, dim), F32, 0.5)
    k, v = (normal(random, (1, heads_kv, length + 32, dim), F32, 0.5)[:, :, :length] for _ in "kv")
    assert excess(q, k, v, 1.0, atol=1e-4, rtol=1e-4) <= 1


@pytest.mark.parametrize("length", [43, 128, 237, 8192])
def test_dim_of_values(length):
    """Its own suite skips these."""
    random = np.random.default_rng(0)
    q, k, v = (normal(random, shape, F32, 0.5) for shape in ((1, 4, 1, 192), (1, 1, length, 192), (1, 1, length, 128)))
    assert excess(q, k, v, 1.0, atol=1e-4, rtol=1e-4) <= 1


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_fully_masked(rows):
    random = np.random.default_rng(0)
    q, k, v = (normal(random, (1, 4, length, 128)) for length in (rows, 8, 8))
    out = adapters.mlx_attention(q, k, v, scale=1, mask=np.array(False))
    assert not out.any() and not np.isnan(out).any()


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("dim", [4, 128])
def test_score_of_minus_infinity(dim, rows):
    q, k = np.ones((1, 4, rows, dim), F32), np.ones((1, 4, 8, dim), F32)
    k[:, :, 0] = -np.inf
    assert excess(q, k, normal(np.random.default_rng(0), (1, 4, 8, dim)), 1.0, atol=1e-4, rtol=1e-4) <= 1


@pytest.mark.parametrize("case", ["1 head", "4 heads", "q swapped", "both swapped", "2 key heads", "mask swapped", "mask a sequence",
                                  "mask broadcast", "mask of a wider q", "7 rows"])
def test_batches(case):
    random = np.random.default_rng(0)
    swapped = lambda *shape: normal(random, shape).swapaxes(1, 2)
    plain = lambda *shape: normal(random, shape)
    small = 0.5 * plain(1, 1, 256, 64)
    q, k, v, mask = {
        "1 head": lambda: (plain(2, 1, 3, 64), plain(2, 1, 3, 64), plain(2, 1, 3, 64), None),
        "4 heads": lambda: (plain(2, 4, 3, 64), plain(2, 1, 3, 64), plain(2, 1, 3, 64), None),
        "q swapped": lambda: (swapped(2, 3, 4, 64), plain(2, 1, 3, 64), plain(2, 1, 3, 64), None),
        "both swapped": lambda: (swapped(2, 3, 4, 64), swapped(2, 3, 1, 64), plain(2, 1, 3, 64), None),
        "2 key heads": lambda: (plain(2, 4, 3, 64), swapped(2, 3, 2, 64), plain(2, 2, 3, 64), None),
        "mask swapped": lambda: (plain(2, 4, 3, 64), plain(2, 1, 3, 64), plain(2, 1, 3, 64), 10 * plain(1, 2, 3, 3).swapaxes(0, 1)),
        "mask a sequence": lambda: (plain(2, 8, 4, 32), plain(2, 2, 8, 32), plain(2, 2, 8, 32), 10 * plain(2, 1, 4, 8)),
        "mask broadcast": lambda: (0.5 * plain(1, 4, 256, 64), small, small, np.array(True)),
        "mask of a wider q": lambda: (0.5 * plain(1, 4, 256, 64), small, small, np.array(2, BF16)),
        "7 rows": lambda: (swapped(4, 7, 32, 64), swapped(4, 7, 8, 64), swapped(4, 7, 8, 64), np.ones((4, 1, 7, 7), bool)),
    }[case]()
    assert excess(q, k, v, 1.0, mask, atol=1e-4, rtol=1e-4) <= 1


@pytest.mark.parametrize("additive", [False, True])
def test_window_by_mask(additive):
    random = np.random.default_rng(0)
    q, k, v = (uniform(random, (1, 1, 128, 128)) for _ in "qkv")
    i, j = np.ogrid[:128, :128]
    mask = (i >= j) & (i <= j + 111)
    assert excess(q, k, v, 1.0, log(mask) if additive else mask, atol=1e-4, rtol=0) <= 1


@pytest.mark.parametrize("length", [8192, 36864, 49152, 66048])
def test_long_masked(length):
    """Past 2^15 and 2^16 keys, all but the last 1024 under a mask of -10^4."""
    random = np.random.default_rng(0)
    q, k, v = (normal(random, (1, heads, rows, 64), F16) for heads, rows in ((32, 512), (16, length), (16, length)))
    mask = np.full((1, 1, 1, length), -1e4, F16)
    mask[..., length - 1024:] = 0
    out = adapters.mlx_attention(q, k, v, scale=0.125, mask=mask)
    rows = judged(512)[::32]
    expected = reference(q, k[:, :, -1024:], v[:, :, -1024:], 0.125, None, None, rows)  # the rest weighs exp(-10^4) = 0
    assert (np.abs(out[:, :, rows].astype(float) - expected) <= 1e-3 + 1e-3 * np.abs(expected)).all()


SINKS = whole(len_q=[1, 128], len_k=[128, 4096], heads_kv=[2, 8], dtype=[F16, F32])


@pytest.mark.parametrize("case", SINKS, ids=names(SINKS))
def test_sinks(case):
    random = np.random.default_rng(0)
    shapes = ((2, 8, case["len_q"], 64), *[(2, case["heads_kv"], case["len_k"], 64)] * 2)
    q, k, v = (normal(random, shape, case["dtype"]) for shape in shapes)
    sinks = normal(random, 8, case["dtype"], 10)
    assert excess(q, k, v, 0.125, None, sinks, atol=1e-5 if case["dtype"] is F32 else 1e-2) <= 1


def test_refusals():
    random = np.random.default_rng(0)
    q, k, v = (normal(random, (2, 8, 128, 64)) for _ in "qkv")
    with pytest.raises(ValueError, match="mask: .*broadcast"):
        adapters.mlx_attention(q, k, v, scale=0.125, mask=np.full((8, 2, 128), False))
    with pytest.raises(ValueError, match="sinks: .*promote"):
        adapters.mlx_attention(*(x.astype(F16) for x in (q, k, v)), scale=0.125, sinks=normal(random, 8))
    for shape in (9, ()):
        with pytest.raises(ValueError, match="sinks: its shape"):
            adapters.mlx_attention(q, k, v, scale=0.125, sinks=np.asarray(normal(random, shape)))


FUSED = [(dim, rows, 512, 8, 4, mask) for dim in (192, 256) for rows in (9, 16) for mask in (None, "causal")]
FUSED += [(dim, 4, 16385, 4, 2, None) for dim in (192, 256)] + [(dim, 3, 128, 4, 2, None) for dim in (64, 96, 128)]


@pytest.mark.parametrize("dim, len_q, len_k, heads_q, heads_kv, mask", FUSED)
def test_shapes_of_fused_kernels(dim, len_q, len_k, heads_q, heads_kv, mask):
    random = np.random.default_rng(0)
    shapes = ((1, heads_q, len_q, dim), (1, heads_kv, len_k, dim), (1, heads_kv, len_k, dim))
    q, k, v = (normal(random, shape, F16) for shape in shapes)
    assert excess(q, k, v, dim**-0.5, mask, atol=1e-3, rtol=1e-3) <= 1


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("heads", [8, 32])
def test_what_gradients_are_taken_of(heads, mask):
    random = np.random.default_rng(0)
    q, k, v = (normal(random, (2, n, 128, 64), F16) for n in (heads, 8, 8))
    full = (2, heads, 128, 128)
    mask = {"additive": normal(random, full, F16), "bool": uniform(random, full) < 0.5}.get(mask, mask)
    assert excess(q, k, v, 0.125, mask, atol=1e-2, rtol=1e-2) <= 1


SLICED = whole(batch=[1, 2, 4], len_q=[1, 8], len_k=[256, 512], kept=[8, 9, 64, 79], mask=[None, "causal"])


@pytest.mark.parametrize("case", SLICED, ids=names(SLICED))
def test_sliced(case):
    random = np.random.default_rng(0)
    q, k, v = (normal(random, (case["batch"], 8, length, 64), F16) for length in (case["len_q"], case["len_k"], case["len_k"]))
    k, v = k[:, :, :case["kept"]], v[:, :, :case["kept"]]
    tolerance = 1e-3 if case["batch"] == 1 else 1e-2
    for _ in range(2):
        assert excess(q, k, v, 0.125, case["mask"], atol=tolerance, rtol=tolerance) <= 1


WRONG = {
    "top-left": ("causal", lambda q, k, v, scale, mask: adapters.libattn.attention(q, k, v, scale=scale, causal="top-left")),
    "one key more": ("causal", lambda q, k, v, scale, mask: adapters.libattn.attention(q, k, v, scale=scale, causal="bottom-right",
                                                                                         offset=1)),
    "mask inverted": ("bool", lambda q, k, v, scale, mask: adapters.mlx_attention(q, k, v, scale=scale, mask=~mask)),
    "mask scaled": ("additive", lambda q, k, v, scale, mask: adapters.mlx_attention(q, k, v, scale=scale, mask=mask * F16(scale))),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_rule_finds(wrong):
    """What other conventions give is outside the tolerances."""
    kind, attention = WRONG[wrong]
    q, k, v, scale, mask = inputs((1, 64, 128, 64, 32, 8), F16, kind, False)
    assert excess(q, k, v, scale, mask, atol=3e-4, rtol=3e-4, attention=attention) > 1
