"""libattn.attention, merge, explain and info against the definition in float64, over shapes, strides, types, masks and options."""
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import libattn
import oracle

CORNERS = ["top-left", "bottom-right"]
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), oracle.BF16]
many = settings(max_examples=250, deadline=None, derandomize=True, database=None)
some = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def strided(generator, shape, dtype, way):
    """Normal numbers of the shape, in memory laid out as `way` says; the last axis is contiguous."""
    x = generator.standard_normal(shape).astype(dtype)
    if way == "gaps":
        base = np.full((shape[0], shape[1] + 1, 2 * shape[2], shape[3] + 3), np.nan, dtype)
        base[:, 1:, ::2, 2:-1] = x
        return base[:, 1:, ::2, 2:-1]
    if way == "swapped":
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    if way == "backwards":
        return np.ascontiguousarray(x[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]
    if way == "shared":  # one sequence for all of the batch
        return np.broadcast_to(x[:1], shape)
    return x


def masks(draw, generator, full):
    """None, or a mask that broadcasts to full."""
    kind = draw(st.sampled_from([None, None, None, bool, *DTYPES]))
    if kind is None:
        return None
    shape = [n if draw(st.booleans()) else 1 for n in full][draw(st.integers(0, 3)):]
    if kind is bool:
        return generator.random(shape) < 0.8
    mask = generator.standard_normal(shape).astype(kind)
    mask[generator.random(shape) < 0.2] = -np.inf
    return mask


@st.composite
def calls(draw):
    """(q, k, v, options)"""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, heads_kv, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 5]))
    rows, keys = draw(st.sampled_from([1, 1, 2, 7, 33, 70])), draw(st.sampled_from([0, 1, 5, 31, 64, 100, 700]))
    dim_qk, dim_v = draw(st.integers(1, 300) if draw(st.booleans()) else st.sampled_from([16, 64])), draw(st.sampled_from([1, 8, 37, 64]))
    layout = draw(st.sampled_from(["bhld", "bhld", "blhd"]))
    shapes = (batch, heads_kv * group, rows, dim_qk), (batch, heads_kv, keys, dim_qk), (batch, heads_kv, keys, dim_v)
    way = st.sampled_from(["dense", "gaps", "swapped", "backwards", "shared"])
    q, k, v = (strided(generator, shape, draw(st.sampled_from(DTYPES)), draw(way))
               for shape in shapes)
    if layout == "blhd":
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    options = {"layout": layout, "mask": masks(draw, generator, (batch, heads_kv * group, rows, keys)),
               "causal": draw(st.sampled_from([False, None, "top-left", "bottom-right", *([True] if rows == keys else [])]))}
    if draw(st.booleans()):
        options["window"] = draw(st.sampled_from([1, np.int64(9), (3, 2), [None, 4], (20, -1), (0, 0)]))
        options["align"] = draw(st.sampled_from([None, options["causal"] if options["causal"] in CORNERS else "bottom-right"]))
    if draw(st.booleans()):
        options |= {"offset": draw(st.integers(-20, 60)), "scale": draw(st.sampled_from([None, 0.0, -0.3, 0.2]))}
    if draw(st.booleans()):
        options |= {"softcap": draw(st.sampled_from([0.0, 2.0])), "alibi_slopes": generator.random(heads_kv * group) / 8}
    if draw(st.booleans()):
        options["sinks"] = generator.standard_normal(heads_kv * group)
    if draw(st.booleans()):
        options |= {"len_q": generator.integers(0, rows, batch, endpoint=True), "len_kv": generator.integers(0, keys, batch, endpoint=True)}
    return q, k, v, options


@many
@given(calls())
def test_by_definition(call):
    q, k, v, options = call
    want, want_lse, bound, lse_bound = oracle.attention(q, k, v, **options)
    out, lse = libattn.attention(q, k, v, return_lse=True, **options)
    assert out.dtype == q.dtype and lse.dtype == np.float32
    oracle.assert_within(out, want, bound, "out")
    oracle.assert_within(lse, want_lse, lse_bound, "lse")


@some
@given(calls())
def test_fast(call):
    """explain says what rounding may take from a weight; where that is nothing, fast is exact to the bit."""
    q, k, v, options = call
    weight_error = libattn.explain(q, k, v, precision="fast", **options).weight_error
    want, want_lse, bound, lse_bound = oracle.attention(q, k, v, weight_error=weight_error, **options)
    out, lse = libattn.attention(q, k, v, precision="fast", return_lse=True, **options)
    oracle.assert_within(out, want, bound, "out")
    oracle.assert_within(lse, want_lse, lse_bound, "lse")
    if weight_error == 0:
        assert out.tobytes() == libattn.attention(q, k, v, **options).tobytes()


@some
@given(calls(), st.sampled_from(DTYPES))
def test_into_an_array_of_the_callers(call, dtype):
    """Strided and of any type; what lies around the results and past len_q stays as it was."""
    q, k, v, options = call
    want, want_lse, bound, lse_bound = oracle.attention(q, k, v, out_dtype=dtype, **options)
    base = np.full((want.shape[0], want.shape[1] + 2, want.shape[2], want.shape[3] + 5), 7.0, dtype)
    out = base[:, 1:-1, ::-1, 2:-3]
    result, lse = libattn.attention(q, k, v, out=out, return_lse=True, **options)
    assert result is out
    oracle.assert_within(lse, want_lse, lse_bound, "lse")
    rows = options.get("len_q")
    if rows is not None:
        axis = 1 if options["layout"] == "blhd" else 2
        past = np.arange(out.shape[axis]) >= np.asarray(rows)[:, None]
        past = past[:, :, None, None] if axis == 1 else past[:, None, :, None]
        assert (out[np.broadcast_to(past, out.shape)] == 7).all()
        want, bound = np.where(past, 7.0, want), np.where(past, 1.0, bound)
    oracle.assert_within(out, want, bound, "out")
    out[...] = 7
    assert (base == 7).all()


@some
@given(calls())
def test_same_bits_on_any_number_of_threads(call):
    q, k, v, options = call
    first = libattn.attention(q, k, v, threads=1, **options)
    for threads in (2, 3):
        assert libattn.attention(q, k, v, threads=threads, **options).tobytes() == first.tobytes()


def test_what_is_hidden_never_matters():
    generator = np.random.default_rng(3)
    q, k, v = (generator.standard_normal((2, 2, n, 16), np.float32) for n in (5, 40, 40))
    mask = generator.random((2, 1, 5, 40)) < 0.5
    mask[:, :, :, 7] = mask[:, :, :, 30:] = False
    expected = libattn.attention(q, k, v, mask=mask)
    for poison in (np.nan, np.inf):
        k[:, :, 7], v[:, :, 30:] = poison, poison
        assert np.array_equal(libattn.attention(q, k, v, mask=mask), expected)
    assert np.isnan(libattn.attention(q, k, v, mask=np.ones_like(mask))).all()


def test_a_nan_stays_in_its_row():
    generator = np.random.default_rng(6)
    q, k, v = (generator.standard_normal((2, 2, n, 16), np.float32) for n in (5, 40, 40))
    out, lse = libattn.attention(q, k, v, return_lse=True)
    q[1, 0, 3, 2] = np.nan
    for got, before in zip(libattn.attention(q, k, v, return_lse=True), (out, lse)):
        assert np.isnan(got[1, 0, 3]).all()
        got[1, 0, 3] = before[1, 0, 3]
        assert np.array_equal(got, before)


def test_every_option_counts():
    """An option that the package dropped, or did not tell from another of an earlier call, would leave two results the same."""
    generator = np.random.default_rng(4)
    q, k, v = (generator.standard_normal((1, 2, n, 8), np.float32) for n in (6, 9, 9))
    calls = [{}, {"mask": np.arange(9) > 2}, {"causal": "top-left"}, {"causal": "bottom-right"}, {"window": 2}, {"window": 3},
             {"window": (1, 1)}, {"window": (2, 1)}, {"window": (1, 1), "align": "bottom-right"}, {"window": 2, "offset": 1},
             {"window": 2, "offset": 2}, {"scale": 0.1}, {"scale": 0.2}, {"softcap": 0.5}, {"softcap": 0.6}, {"sinks": [1, 1]},
             {"alibi_slopes": [0.5, 0.5]}, {"len_kv": 4}, {"len_q": 3}, {"device": "reference"}]
    results = [libattn.attention(q, k, v, **options) for options in calls]
    for (i, a), (j, b) in itertools.combinations(enumerate(results), 2):
        assert not np.array_equal(a, b), (calls[i], calls[j])
    square = generator.standard_normal((1, 4, 4, 8), np.float32)
    assert not np.array_equal(libattn.attention(square, square, square), libattn.attention(square, square, square, layout="blhd"))


# ---- merge ----

@some
@given(st.integers(0, 2**32), st.sampled_from(["bhld", "blhd"]), st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_states_merge_to_the_whole(seed, layout, cuts):
    generator = np.random.default_rng(seed)
    q, k, v = (generator.standard_normal((2, 4, n, 24), np.float32) for n in (3, 300, 300))
    if layout == "blhd":
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    axis, ends = (1 if layout == "blhd" else 2), sorted([0, 300, *cuts])
    take = lambda x, a, b: x[:, a:b] if axis == 1 else x[:, :, a:b]
    states = [libattn.attention(q, take(k, a, b), take(v, a, b), layout=layout, return_lse=True) for a, b in zip(ends, ends[1:])]
    out, lse = libattn.merge(states, layout=layout)
    want, want_lse, bound, lse_bound = oracle.attention(q, k, v, layout=layout)
    oracle.assert_within(out, want, 2 * bound, "out")
    oracle.assert_within(lse, want_lse, 2 * lse_bound, "lse")
    half = np.empty(out.shape, np.float16)
    assert libattn.merge(states, layout=layout, out=half)[0] is half
    assert np.allclose(half, out, atol=2e-3)


def test_states_of_nothing():
    nothing = np.full((1, 2, 3, 4), np.nan, np.float32), np.full((1, 2, 3), -np.inf, np.float32)
    out, lse = libattn.merge([nothing, nothing])
    assert not out.any() and (lse == -np.inf).all()
    one = np.ones((1, 2, 3, 4), np.float32), np.zeros((1, 2, 3), np.float32)
    out, lse = libattn.merge([nothing, one])
    assert (out == 1).all() and not lse.any()


def test_any_state_may_be_strided():
    whole = np.random.default_rng(5).standard_normal((1, 2, 3, 8), np.float32)
    lse = np.zeros((1, 2, 3), np.float32)
    shifted = np.frombuffer(b"\0" + whole.tobytes(), np.uint8)[1:].view(np.float32).reshape(whole.shape)  # no address of a float's
    expected = libattn.merge([(whole, lse), (2 * whole, lse)])[0]
    for x in (np.repeat(whole, 2, -1)[..., ::2], whole[:, ::-1].copy()[:, ::-1], shifted):
        assert np.array_equal(libattn.merge([(x, lse), (2 * whole, lse)])[0], expected)
        assert np.array_equal(libattn.merge(iter([[2 * whole, lse], [x, lse]]))[0], expected)


# ---- explain and info ----

def test_explain_says_what_would_run():
    x = np.empty((2, 8, 512, 64), np.float32)
    found = libattn.explain(x, x[:, :2], x[:, :2], causal=True, threads=1)
    assert (found.device, found.threads, found.passes) == ("cpu", 1, 1)
    assert found.isa == libattn.info()["isa"] and found.weight_error == 0 and found.kernel and found.reason
    assert found.operations == 2 * 128 * (512 * 513 / 2) * 8 * 2
    assert found.bytes == 4 * 64 * 512 * 2 * (8 + 2 + 2 + 8)
    assert libattn.explain(x, x, x, device="reference").device == "reference"
    assert libattn.explain(x, x, x, out=np.empty(x.shape, np.float16)).bytes == libattn.explain(x, x, x).bytes - 2 * x.size
    assert libattn.explain(x, x, x, mask=np.ones((512, 512), bool)).bytes > libattn.explain(x, x, x).bytes


def test_explain_reads_no_element():
    """Of keys that would fill more than any memory; small arrays are checked as in a call."""
    one = np.zeros(64, np.float32)
    k = np.lib.stride_tricks.as_strided(one, (2, 8, 1 << 40, 64), (1 << 52, 1 << 49, 256, 4))
    found = libattn.explain(k[:, :, :1], k, k, sinks=[1.0] * 8, alibi_slopes=[0.5] * 8, len_q=1, len_kv=[5, 1 << 30], return_lse=True)
    assert found.chunks > 1 and found == libattn.explain(k[:, :, :1], k, k)
    for options in ({"sinks": [1.0] * 7}, {"len_kv": [5, 1 << 31]}):  # lengths are 32 bits in the library
        with pytest.raises(ValueError, match=next(iter(options))):
            libattn.explain(k[:, :, :1], k, k, **options)


def test_info():
    found = libattn.info()
    assert found["isa"] in found["isas"] and found["threads"] >= 1 and found["device"] == "cpu"
    assert found["version"] == libattn.__version__ and math.prod(map(len, found["library"].split())) > 0


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4)])
def test_nothing_to_do(shape):
    q, k = np.empty(shape, np.float32), np.ones((shape[0], 2, 5, 4), np.float32)
    out, lse = libattn.attention(q, k, k, return_lse=True)
    assert out.shape == shape and lse.shape == shape[:3]
