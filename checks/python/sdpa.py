"""PyTorch's scaled_dot_product_attention by its definition in float64, with the error that docs/numerics.md allows each element."""
import math

import pytest
import torch
import torch.nn.functional as F

import libattn.torch

original = F.scaled_dot_product_attention

# Absolute and relative, of PyTorch's own tests on CPUs (pytorch/pytorch, test/test_transformers.py).
TOLERANCES = {torch.float64: (1e-5, 5e-6), torch.float32: (1e-5, 5e-6), torch.float16: (1e-2, 1e-2), torch.bfloat16: (5e-2, 5e-2)}
WEIGHT_ERROR = 2.0**-8  # what precision "fast" may take from a probability, which 16-bit inputs get


def half_ulp(x, dtype):
    info = torch.finfo(dtype)
    exponent = torch.frexp(x.abs().clamp(min=info.tiny)).exponent
    return info.eps / 2 * torch.exp2(exponent.double() - 1)


def spread(query, key, value, gqa):
    """key and value with a head for each of query's."""
    if not gqa:
        return key, value
    return tuple(x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))


def definition(query, key, value, mask=None, causal=False, scale=None, gqa=False, softcap=0.0, window=None, sinks=None):
    """(result, bound), both float64. What is hidden counts for nothing, and a row that sees nothing is 0."""
    dtype, (query, key, value) = query.dtype, (x.double() for x in (query, key, value))
    key, value = spread(query, key, value, gqa)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores, size = scale * (query @ key.mT), abs(scale) * (query.abs() @ key.abs().mT)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    ahead = torch.arange(scores.shape[-1]) - torch.arange(scores.shape[-2])[:, None]
    hidden = (ahead > (0 if causal else math.inf)) | (ahead <= (-math.inf if window is None else -window))
    if mask is not None:
        hidden = hidden | (~mask if mask.dtype == torch.bool else mask == -math.inf)
        if mask.dtype != torch.bool:
            scores, size = scores + mask, size + mask.abs()
    hidden = hidden.expand(scores.shape)
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is None:
        weights = scores.softmax(-1).masked_fill(hidden, 0)
    else:
        sink = sinks.double().reshape(-1, 1, 1).expand(*scores.shape[:-1], 1)
        weights, size = torch.cat((scores, sink), -1).softmax(-1)[..., :-1], torch.maximum(size, sink.abs())
    seen = (~hidden).sum(-1, keepdim=True)
    largest = size.masked_fill(hidden, 0).amax(-1, keepdim=True)
    out, total = weights @ value, weights @ value.abs()
    share = 2.0**-24 * (8 + 2 * largest + seen / 1024) + (0 if dtype == torch.float32 else WEIGHT_ERROR)
    return out, half_ulp(out, dtype) + total * share


def assert_exact(out, *args, **options):
    """Every element is within its bound."""
    expected, bound = definition(*args, **options)
    assert out.shape == expected.shape
    excess = (out.double() - expected).abs() / bound
    worst = excess.nan_to_num(math.inf).argmax()
    where = tuple(int(i) for i in torch.unravel_index(worst, out.shape))
    assert excess.flatten()[worst] <= 1, f"{out[where]} at {where} is not {expected[where]}: {excess[where]} times the bound"


def assert_close(out, expected, tolerances=TOLERANCES):
    atol, rtol = tolerances[out.dtype]
    torch.testing.assert_close(out, expected, atol=atol, rtol=rtol)


def taken(function, *args, **options):
    """The result of a call that libattn computed itself."""
    libattn.torch.reset_stats()
    out = function(*args, **options)
    assert libattn.torch.stats() == {"taken": 1, "left": {}}
    return out


def left(reason, function, *args, **options):
    """The result of a call that was left to PyTorch, for this reason."""
    libattn.torch.reset_stats()
    out = function(*args, **options)
    assert libattn.torch.stats() == {"taken": 0, "left": {reason: 1}}
    return out


@pytest.fixture(autouse=True)
def unrouted():
    """For a module to import: seeded, counts at 0, and nothing stays routed."""
    torch.manual_seed(0)
    libattn.torch.reset_stats()
    yield
    assert F.scaled_dot_product_attention is original


@pytest.fixture
def plain():
    """query, key, value."""
    return tuple(torch.randn(2, 3, n, 8) for n in (5, 7, 7))
