"""The parameter grids that FlashAttention's own tests of the forward pass go through (Dao-AILab/flash-attention, tests/
test_flash_attn.py, 2026), with their shapes, types and options, under their rule: against a reference (here float64) the error is at most
twice that of the same computation by PyTorch in the input's type.

Left out: dropout, gradients and what is deterministic about them, paged caches and rotary embeddings, which are not offered. The grids
have up to 20,000 points; of each as many are run as it takes for every pair of values of two parameters to meet (grids.pairwise). At most
ROWS rows of a sequence are judged, spread evenly; all are computed. Batch and heads are fewer where tensors would be of more than SIZE
elements."""
import math

import pytest
import torch

import adapters
from grids import names, pairwise

TYPES, BOTH = [torch.float16, torch.bfloat16], [False, True]
DIMS = [32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256]
ROWS, SIZE = 48, 3 << 20


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def judged(rows):
    return torch.linspace(0, rows - 1, min(rows, ROWS)).round().long().unique()


def plain(q, k, v, rows, causal, window, softcap, slopes, exact):
    """One sequence, (L, H, D), by PyTorch: its rows in float64, or in the input's type with the scale on k."""
    if exact:
        q, k, v = q.double(), k.double(), v.double()
    distance = torch.arange(len(k)) - (rows[:, None] + len(k) - len(q))
    group, root = q.shape[1] // k.shape[1], math.sqrt(q.shape[2])
    q, k, v = q[rows].transpose(0, 1), k.transpose(0, 1).repeat_interleave(group, 0), v.transpose(0, 1).repeat_interleave(group, 0)
    scores = (q / root) @ k.mT if exact else q @ (k / root).mT
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    left, right = window[0], 0 if causal else window[1]
    hidden = (distance > (right if right >= 0 else math.inf)) | (distance < (-left if left >= 0 else -math.inf))
    if slopes is not None:
        scores = scores - slopes[:, None, None].to(torch.float64 if exact else torch.float32) * distance.abs()
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1).masked_fill(hidden.all(-1, keepdim=True), 0)
    return (weights.to(v.dtype) @ v).transpose(0, 1)


def within(sequences, causal=False, window=(-1, -1), softcap=0.0, slack=0.0, factor=2):
    """The rule, over (q, k, v, slopes, out) of each sequence."""
    ours, theirs = 0.0, 0.0
    for q, k, v, slopes, out in sequences:
        assert out.dtype == q.dtype and out.shape == (*q.shape[:2], v.shape[2]) and out.isfinite().all()
        rows = judged(len(q))
        expected = plain(q, k, v, rows, causal, window, softcap, slopes, True)
        ours = max(ours, (out[rows].double() - expected).abs().max().item())
        theirs = max(theirs, (plain(q, k, v, rows, causal, window, softcap, slopes, False).double() - expected).abs().max().item())
    return ours <= factor * theirs + slack


def whole_batch(q, k, v, slopes, out):
    return [(q[b], k[b], v[b], None if slopes is None else slopes[b], out[b]) for b in range(len(q))]


def sizes(batch, heads, heads_k, *elements):
    """Batch and heads (the groups stay), fewer where a tensor of so many elements a head would be too large."""
    while batch * heads * max(elements) > SIZE and batch > 1:
        batch //= 2
    group = heads // heads_k
    while batch * heads * max(elements) > SIZE and heads_k > 1:
        heads_k = (heads_k + 1) // 2
        heads = heads_k * group
    return batch, heads, heads_k


def inputs(case, batch, heads, heads_k, len_q, len_k):
    """q, k, v, slopes and the window, as the case has them."""
    dim, kind, softcap = case["dim"], case["dtype"], case.get("softcap", 0.0)
    batch, heads, heads_k = sizes(batch, heads, heads_k, len_q * dim, len_k * dim)
    q = torch.randn(batch, len_q, heads, dim).to(kind) * (softcap or 1)  # scores of the cap's own size
    if case.get("packed"):
        k, v = torch.randn(batch, len_k, 2, heads_k, dim).to(kind).unbind(2)
    else:
        k, v = (torch.randn(batch, len_k, heads_k, dim).to(kind) for _ in "kv")
    slopes = torch.rand(batch, heads) * 0.3 if case.get("alibi") else None
    window = tuple(torch.randint(0, len_k, (2,)).tolist()) if case["local"] else (-1, -1)
    return q, k, v, slopes, window


def heads_of(case, heads=6, groups=2):
    heads = 4 if case.get("softcap") else heads
    return heads, {"mha": heads, "mqa": 1, "gqa": groups}[case["heads"]]


PACKED = pairwise(len=[97, 128, 200, 384, 768, 1024, 1025, 2048], dim=DIMS, causal=BOTH, local=BOTH, alibi=BOTH, dtype=TYPES)


@pytest.mark.parametrize("case", PACKED, ids=names(PACKED))
def test_qkvpacked(case):
    length, dim = case["len"], case["dim"]
    batch, heads, _ = sizes(4, 9, 9, 3 * length * dim)
    qkv = torch.randn(batch, length, 3, heads, dim).to(case["dtype"])
    window = tuple(torch.randint(0, length, (2,)).tolist()) if case["local"] else (-1, -1)
    slopes = torch.rand(batch, heads) * 0.3 if case["alibi"] else None
    out = adapters.flash_attn_qkvpacked_func(qkv, causal=case["causal"], window_size=window, alibi_slopes=slopes)
    assert within(whole_batch(*qkv.unbind(2), slopes, out), case["causal"], window)


LENGTHS = [(113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256), (1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048)]
OUTPUT = pairwise(len=LENGTHS, dim=[dim for dim in DIMS if dim != 80], heads=["mha", "mqa", "gqa"], causal=BOTH, local=BOTH, alibi=BOTH,
                  dtype=TYPES, packed=BOTH, softcap=[0.0, 50.0])


@pytest.mark.parametrize("case", OUTPUT, ids=names(OUTPUT))
def test_output(case):
    q, k, v, slopes, window = inputs(case, 4, *heads_of(case), *case["len"])
    options = {"causal": case["causal"], "window_size": window, "softcap": case["softcap"], "alibi_slopes": slopes}
    if case["packed"]:
        out = adapters.flash_attn_kvpacked_func(q, torch.stack((k, v), 2), **options)
    else:
        out = adapters.flash_attn_func(q, k, v, **options)
    assert within(whole_batch(q, k, v, slopes, out), case["causal"], window, case["softcap"])


def unpadded(q, k, v, equal=False):
    """The sequences cut to lengths of their own, at most 20 shorter, one after the other; and where they begin."""
    batch = len(q)
    lens_q, lens_k = (torch.randint(max(1, x.shape[1] - 20), x.shape[1] + 1, (batch,)) for x in (q, k))
    lens_k = lens_q if equal else lens_k
    starts_q, starts_k = (torch.nn.functional.pad(lens.cumsum(0), (1, 0)).int() for lens in (lens_q, lens_k))
    cut = lambda x, lens: torch.cat([x[b, :lens[b]] for b in range(batch)])
    return cut(q, lens_q), cut(k, lens_k), cut(v, lens_k), starts_q, starts_k, int(lens_q.max()), int(lens_k.max())


def cut_apart(q, k, v, starts_q, starts_k, slopes, out):
    for b in range(len(starts_q) - 1):
        rows, keys = slice(starts_q[b], starts_q[b + 1]), slice(starts_k[b], starts_k[b + 1])
        yield q[rows], k[keys], v[keys], None if slopes is None else slopes[b], out[rows]


def varlen(case, q, k, v, slopes, window, slack=0.0, equal=False):
    softcap = case.get("softcap", 0.0)
    packed = unpadded(q, k, v, equal)
    out = adapters.flash_attn_varlen_func(*packed, causal=case["causal"], window_size=window, softcap=softcap, alibi_slopes=slopes)
    return within(cut_apart(*packed[:5], slopes, out), case["causal"], window, softcap, slack)


VARLEN_PACKED = pairwise(len=[97, 128, 200, 257, 384, 512, 768, 1025, 2048], dim=[dim for dim in DIMS if dim not in (40, 111)], causal=BOTH,
                         local=BOTH, alibi=BOTH, dtype=TYPES)


@pytest.mark.parametrize("case", VARLEN_PACKED, ids=names(VARLEN_PACKED))
def test_varlen_qkvpacked(case):
    assert varlen(case, *inputs(case, 5, 6, 6, case["len"], case["len"]), equal=True)


VARLEN = pairwise(len=[(1, 147), *LENGTHS], dim=[dim for dim in DIMS if dim != 40], heads=["mha", "mqa", "gqa"], causal=BOTH, local=BOTH,
                  alibi=BOTH, dtype=TYPES, packed=BOTH, softcap=[0.0, 50.0])


@pytest.mark.parametrize("case", VARLEN, ids=names(VARLEN))
def test_varlen_output(case):
    assert varlen(case, *inputs(case, 4, *heads_of(case), *case["len"]))


def swapped(case):
    return case["len"][::-1] if case["swap"] else case["len"]


UNEVEN = [(1, 239), (3, 799), (127, 512), (127, 513), (113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (1023, 1024)]
CAUSAL = pairwise(len=UNEVEN, dim=DIMS, swap=BOTH, local=BOTH, dtype=TYPES, causal=[True])


@pytest.mark.parametrize("case", CAUSAL, ids=names(CAUSAL))
def test_causal(case):
    q, k, v, slopes, window = inputs(case, 8, 9, 9, *swapped(case))
    out = adapters.flash_attn_func(q, k, v, causal=True, window_size=window)
    assert within(whole_batch(q, k, v, slopes, out), True, window, slack=1e-5)


@pytest.mark.parametrize("case", CAUSAL, ids=names(CAUSAL))
def test_varlen_causal(case):
    assert varlen(case, *inputs(case, 8, 9, 9, *swapped(case)), slack=1e-5)


SPLIT = pairwise(len=[(3, 1024), (1, 339), (64, 800), (3, 799), (64, 2048), (16, 20000), (16, 100000), (128, 128), (256, 256)], dim=DIMS,
                 swap=BOTH, causal=BOTH, local=BOTH, alibi=BOTH, dtype=TYPES)


@pytest.mark.parametrize("case", SPLIT, ids=names(SPLIT))
def test_many_keys(case):
    q, k, v, slopes, window = inputs(case, 1, 12, 12, *swapped(case))
    out = adapters.flash_attn_func(q, k, v, causal=case["causal"], window_size=window, alibi_slopes=slopes)
    assert within(whole_batch(q, k, v, slopes, out), case["causal"], window, slack=1e-5)


CACHE = pairwise(len=[(1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 20000), (1, 131072), (16, 131072),
                      (128, 128)], dim=[32, 59, 64, 80, 128, 256], heads=["mha", "mqa", "gqa"], splits=[1, 0],
                 new=["none", "as many", "fewer"], causal=BOTH, local=BOTH, alibi=BOTH, leftpad=BOTH, index=BOTH, dtype=[torch.float16])


@pytest.mark.parametrize("case", CACHE, ids=names(CACHE))
def test_kvcache(case):
    len_q, len_k = case["len"]
    q, k_cache, v_cache, slopes, window = inputs(case, 2, *heads_of(case, groups=3), len_q, len_k)
    batch, _, heads_k, dim = (len(q), *k_cache.shape[1:])
    index = torch.randperm(2 * batch)[:batch] if case["index"] else None
    if case["index"]:
        k_cache, v_cache = (torch.cat((torch.randn_like(x), x)) for x in (k_cache, v_cache))
    count = {"none": 0, "as many": len_q, "fewer": int(torch.randint(1, len_q + 1, ()))}[case["new"]]
    new = [torch.randn(batch, count, heads_k, dim).to(q.dtype) for _ in "kv"] if count else [None, None]
    filled = torch.randint(0 if count else 1, len_k - count + 1, (batch,))
    leftpad = torch.stack([torch.randint(0, max(int(n), 1), ()) for n in filled]) if case["leftpad"] else None
    out = adapters.flash_attn_with_kvcache(q, k_cache, v_cache, *new, cache_seqlens=filled, cache_batch_idx=index, cache_leftpad=leftpad,
                                           causal=case["causal"], window_size=window, alibi_slopes=slopes, num_splits=case["splits"])
    sequences = []
    for b in range(batch):
        entry, end = b if index is None else index[b], int(filled[b]) + count
        if count:
            assert torch.equal(k_cache[entry, filled[b]:end], new[0][b]) and torch.equal(v_cache[entry, filled[b]:end], new[1][b])
        keys = slice(0 if leftpad is None else leftpad[b], end)
        sequences.append((q[b], k_cache[entry, keys], v_cache[entry, keys], None if slopes is None else slopes[b], out[b]))
    assert within(sequences, case["causal"], window, slack=1e-5, factor=5 if case["alibi"] else 3)


RACE = pairwise(len=[(1, 239), (3, 799), (127, 512), (127, 513), (113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256),
                     (1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048)], dim=DIMS, causal=BOTH, local=[False], dtype=[torch.float16])


@pytest.mark.parametrize("case", RACE, ids=names(RACE))
def test_same_bits_again(case):
    q, k, v, _, _ = inputs(case, 4, 4, 4, *case["len"])
    first = adapters.flash_attn_func(q, k, v, causal=case["causal"])
    assert all(torch.equal(adapters.flash_attn_func(q, k, v, causal=case["causal"]), first) for _ in range(5))


def test_dropout_is_refused():
    q = torch.zeros(1, 4, 1, 8)
    with pytest.raises(NotImplementedError, match="dropout"):
        adapters.flash_attn_func(q, q, q, 0.17)


WRONG = [({"causal": True}, False), ({"causal": False}, True), ({"window_size": (7, 9)}, False), ({"window_size": (8, 10)}, False),
         ({"window_size": (9, 9)}, True), ({"softcap": 2.0}, True), ({"softmax_scale": 0.12}, False), ({"alibi_slopes": None}, True)]


@pytest.mark.parametrize("wrong, causal", WRONG)
def test_the_rule_finds(wrong, causal):
    """Each option a little off is outside the rule."""
    right = {"causal": causal, "window_size": (8, 9), "softcap": 0.0, "softmax_scale": None, "alibi_slopes": torch.rand(2, 4) * 0.3}
    q, k, v, _, _ = inputs({"dim": 64, "dtype": torch.bfloat16, "local": False}, 2, 4, 2, 113, 203)
    def holds(options):
        out = adapters.flash_attn_func(q, k, v, **options)
        return within(whole_batch(q, k, v, right["alibi_slopes"], out), causal, right["window_size"])
    assert holds(right) and not holds({**right, **wrong})
