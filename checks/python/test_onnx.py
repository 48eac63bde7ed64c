"""libattn.onnx as an implementation for onnx's ReferenceEvaluator: every ONNX case of the conformance folder and every node test that the
package onnx generates for Attention and FlexAttention, as whole models. Then the operator against onnx's own reference in float64 over
random attributes, and what it must refuse."""
import itertools
import os

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.runner import Runner
from onnx.reference.ops.op_attention import _compute_attention as standard

import libattn
import libattn.onnx
import onnx_models

CONFORMANCE = 65                                   # cases in the folder
GENERATED = {"Attention": 93, "FlexAttention": 11}  # node tests of onnx 1.23.2
RTOL = 1e-6                                        # of float32, atol 0
FLEX_ULP = {"float32": 3.4, "float16": 0.8}        # how far the expected outputs of FlexAttention are from the exact result
BY_NUMPY = "prob_mod"                              # leaves no softmax to do


@pytest.fixture
def calls(monkeypatch):
    """The calls of attention that a model leads to."""
    made, true = [], libattn.onnx.core.attention
    monkeypatch.setattr(libattn.onnx.core, "attention", lambda *args, **kwargs: made.append(kwargs) or true(*args, **kwargs))
    return made


def steps(a, b):
    """How many representable values apart; equal infinities and NaNs are 0 apart."""
    whole = {2: np.int16, 4: np.int32}[a.itemsize]
    least = np.iinfo(whole).min
    order = lambda x: np.where((n := np.ascontiguousarray(x).view(whole).astype(np.int64)) < 0, least - n, n)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(order(a) - order(b)))


def judge(case, slot, got):
    want, dtype = case.outputs[slot], case.facts["problem"]["dtype"]
    assert got.dtype == want.dtype and got.shape == want.shape, (slot, got.dtype, got.shape)
    if slot.startswith("present"):
        assert np.ascontiguousarray(got).tobytes() == want.tobytes(), slot
    elif dtype == "float64":  # on inputs rounded to float32
        np.testing.assert_allclose(got, want, case.facts["rtol"], case.facts["atol"], err_msg=slot)
    elif case.facts["op"] == "FlexAttention":
        ulp = np.spacing(np.abs(want).astype(dtype)).astype(np.float64)
        slack = FLEX_ULP[dtype] * ulp + (RTOL * np.abs(want) if dtype == "float32" else ulp)
        assert (np.abs(got.astype(np.float64) - want) <= slack).all(), slot
    elif dtype == "float32":
        np.testing.assert_allclose(got, want, RTOL, 0, err_msg=slot)
    else:
        apart = steps(got, want)
        assert apart.max() <= 1 and (apart == 0).mean() >= 0.99, (slot, apart.max(), (apart == 0).mean())


def test_conformance_is_there():
    found = onnx_models.names()
    if not found and os.environ.get("ATTN_REQUIRE_CONFORMANCE") != "1":
        pytest.skip(f"no ONNX cases in {onnx_models.root()}; ATTN_CONFORMANCE names another folder")
    assert len(found) >= CONFORMANCE, f"{len(found)} ONNX cases in {onnx_models.root()}"
    with open(onnx_models.root() / "INDEX.tsv", encoding="utf-8") as index:
        assert sorted(line.split("\t")[0] for line in list(index)[1:]) == found


@pytest.mark.parametrize("name", onnx_models.names())
def test_conformance(name, calls):
    case = onnx_models.load(name)
    results = onnx_models.run(case.model, case.inputs)
    assert [info.name for info in case.model.graph.output] == list(case.outputs)
    for slot, got in zip(case.outputs, results, strict=True):
        judge(case, slot, got)
    assert calls or name == f"test_flexattention_{BY_NUMPY}"


def test_generated_are_there():
    count = {operator: 0 for operator in GENERATED}
    for case in onnx_models.generated().values():
        count[onnx_models.operator_of(case.model)] += 1
    assert all(count[operator] >= least for operator, least in GENERATED.items()), count


@pytest.mark.parametrize("name", sorted(onnx_models.generated()))
def test_generated(name, calls):
    """Held to what onnx's own runner holds backends to. float64 is refused."""
    case = onnx_models.generated()[name]
    for inputs, expected in case.data_sets:
        feeds = dict(zip((info.name for info in case.model.graph.input), inputs, strict=True))
        if any(x.dtype == np.float64 for x in inputs):
            with pytest.raises(onnx.reference.op_run.RuntimeTypeError, match="Q: must be of float32, float16, bfloat16, not float64"):
                onnx_models.run(case.model, feeds)
            assert not calls
            return
        Runner.assert_similar_outputs(expected, onnx_models.run(case.model, feeds), case.rtol, case.atol)
    assert calls or name == f"test_flexattention_{BY_NUMPY}"


def draw(rng, rank, past, groups, dims, rows, keys):
    """Inputs of the operator and the keyword arguments that go with their rank."""
    batch, kv = 2, 2
    shapes = {"Q": (batch, kv * groups, rows, dims[0]), "K": (batch, kv, keys, dims[0]), "V": (batch, kv, keys, dims[1])}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    if past:
        arrays["past_key"], arrays["past_value"] = (rng.standard_normal((batch, kv, past, dim), np.float32) for dim in dims)
    if rank == 4:
        return arrays, {}
    for name in "QKV":
        x = arrays[name].transpose(0, 2, 1, 3)
        arrays[name] = np.ascontiguousarray(x).reshape(*x.shape[:2], -1)
    return arrays, {"q_num_heads": kv * groups, "kv_num_heads": kv}


def draw_mask(rng, form, rows, total, heads, batch, columns):
    if form is None:
        return None
    shape = {"row": (columns,), "plane": (rows, columns), "heads": (heads, 1, columns), "all": (batch, heads, rows, columns),
             "batch": (batch, 1, 1, columns)}[form[1]]
    if form[0] == "bool":
        return rng.random(shape) < 0.6
    return np.where(rng.random(shape) < 0.8, rng.standard_normal(shape), -np.inf).astype(np.float32)


MASKS = [None] + [(kind, shape) for kind in ("bool", "float") for shape in ("row", "plane", "heads", "all", "batch")]
CACHES = ("none", "past", "nonpad equal", "nonpad")


@pytest.mark.parametrize("cache,rank,causal", list(itertools.product(CACHES, (3, 4), (0, 1))))
def test_against_the_standard(cache, rank, causal):
    """Random attributes; the expected values are those of onnx's reference, computed in float64."""
    rng = np.random.default_rng([CACHES.index(cache), rank, causal])
    rows, keys, groups, dims = 5, 7, 2, (8, 6)
    past = 4 if cache == "past" else 0
    total = keys + past
    modes = itertools.cycle(range(4))
    for form, window, softcap in itertools.product(MASKS, ((-1, -1), (2, -1), (-1, 1), (1, 2), (0, 0)), (0.0, 1.5)):
        arrays, options = draw(rng, rank, past, groups, dims, rows, keys)
        lengths = {"nonpad": np.array([6, 3]), "nonpad equal": np.array([5, 5])}.get(cache)
        short = form is not None and rng.random() < 0.3
        mask = draw_mask(rng, form, rows, total, 4, 2, total - 1 if short else total)
        mode = next(modes)
        options |= dict(scale=float(rng.random()), is_causal=causal, softcap=softcap, qk_matmul_output_mode=mode,
                        left_window_size=window[0], right_window_size=window[1])
        got = libattn.onnx.attention(**arrays, attn_mask=mask, nonpad_kv_seqlen=lengths, qk_matmul_output=True, **options)
        wide = {name: x.astype(np.float64) for name, x in arrays.items()}
        wide_mask = mask if mask is None or mask.dtype == bool else mask.astype(np.float64)
        if wide_mask is not None:  # with is_causal its reference takes the rows of the mask for those of Q, so it gets them all
            wide_mask = np.broadcast_to(wide_mask, (2, 4, rows, mask.shape[-1]))
        # Its reference shows the scores of mode 0 after the softcap; the operator's text and function body show them before.
        uncapped = dict(options, softcap=0.0) if mode == 0 else options
        want = list(standard(**wide, attn_mask=wide_mask, nonpad_kv_seqlen=lengths, **options))
        want[3] = standard(**wide, attn_mask=wide_mask, nonpad_kv_seqlen=lengths, **uncapped)[3]
        about = f"{form} {window} {softcap} {mode}"
        np.testing.assert_allclose(got[0], want[0], 1e-6, 3e-6, err_msg=about)
        np.testing.assert_allclose(got[3], want[3], 1e-6, 1e-7, err_msg=about)
        assert got[0].dtype == got[3].dtype == np.float32
        for a, b in zip(got[1:3], want[1:3]):
            assert (a is None) if lengths is not None else (a == b).all()


def test_qk_matmul_only_when_asked():
    x = np.ones((1, 1, 2, 4), np.float32)
    assert libattn.onnx.attention(x, x, x)[3] is None
    assert libattn.onnx.attention(x, x, x, qk_matmul_output=True)[3] is not None


def test_hidden_keys_do_not_matter():
    """NaN in what no row sees changes no output, in any mode of the scores that masks take part in."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 2, 4, 8), np.float32) for _ in range(3))
    mask = np.ones((2, 1, 1, 4), bool)
    mask[1, ..., 2:] = False
    clean = [libattn.onnx.attention(q, k, v, mask, qk_matmul_output=True, qk_matmul_output_mode=mode) for mode in (2, 3)]
    k[1, :, 2:], v[1, :, 2:] = np.nan, np.nan
    for mode, (y, _, _, scores) in zip((2, 3), clean):
        spoilt = libattn.onnx.attention(q, k, v, mask, qk_matmul_output=True, qk_matmul_output_mode=mode)
        assert (spoilt[0] == y).all() and (spoilt[3] == scores).all()


def test_views_and_double_softmax():
    """Inputs whose last axis is not contiguous are what a Transpose before the node gives; DOUBLE for the softmax is close to float32's."""
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((2, 8, 3, 5), np.float32) for _ in range(3))
    turned = [x.transpose(0, 2, 3, 1) for x in (q, k, v)]
    y = libattn.onnx.attention(*turned)[0]
    assert (y == libattn.onnx.attention(*map(np.ascontiguousarray, turned))[0]).all()
    np.testing.assert_allclose(libattn.onnx.attention(*turned, softmax_precision=11)[0], y, 2e-6, 1e-7)


X, X3, PAST = np.ones((2, 4, 3, 8), np.float32), np.ones((2, 3, 32), np.float32), np.ones((2, 4, 2, 8), np.float32)
KEYS3 = {"Q": X3, "K": X3, "V": X3}
REFUSED = [  # changes to attention(X, X, X), and what the text must hold
    ({"Q": X.astype(np.float64)}, TypeError, "Q: must be of float32, float16, bfloat16, not float64"),
    ({"Q": X.astype(np.float16)}, TypeError, "K: must be of Q's type, float16, not float32"),
    ({"Q": X.tolist()}, TypeError, "Q: must be an array, not list"),
    ({"Q": X[0, 0]}, ValueError, "Q: must have 3 or 4 axes, not 2; its shape is 3×8"),
    ({"Q": X3}, ValueError, "K, V: must have as many axes as Q; Q is 2×3×32, K 2×4×3×8"),
    (KEYS3, ValueError, "q_num_heads: must be given"),
    (KEYS3 | {"q_num_heads": 4}, ValueError, "kv_num_heads: must be given"),
    (KEYS3 | {"q_num_heads": 5, "kv_num_heads": 4}, ValueError, "Q: its last axis, 32, must be a multiple of q_num_heads, 5"),
    (KEYS3 | {"q_num_heads": 0, "kv_num_heads": 4}, ValueError, "q_num_heads: must be 1 or more, not 0"),
    (KEYS3 | {"q_num_heads": 4, "kv_num_heads": 2.5}, TypeError, "kv_num_heads: must be an integer"),
    ({"q_num_heads": 4}, ValueError, "q_num_heads: goes with inputs of 3 axes only; Q is 2×4×3×8"),
    ({"kv_num_heads": 2, "opset": 24}, ValueError, "kv_num_heads: goes with inputs of 3 axes only; K is 2×4×3×8"),
    ({"K": X[:, :3], "V": X[:, :3]}, ValueError, "Q: its number of heads, 4, must be a positive multiple of K's, 3"),
    ({"K": X[..., :4]}, ValueError, "K: its head dim is 4 but Q's is 8; Q is 2×4×3×8 and K 2×4×3×4"),
    ({"V": X[:, :, :2]}, ValueError, "V: its length is 2 but K's is 3; K is 2×4×3×8 and V 2×4×2×8"),
    ({"past_key": PAST}, ValueError, "past_key, past_value: must be given together"),
    ({"past_key": PAST, "past_value": PAST[..., :4]}, ValueError, "past_value: must be 2×4×any×8"),
    ({"past_key": PAST.astype(np.float16), "past_value": PAST}, ValueError, "past_key: must be 2×4×any×8 float32"),
    ({"past_key": PAST, "past_value": PAST, "nonpad_kv_seqlen": np.array([1, 1])}, ValueError, "nonpad_kv_seqlen: cannot go with past_key"),
    ({"nonpad_kv_seqlen": np.array([1, 4])}, ValueError, "nonpad_kv_seqlen: its entries must be between 0 and 3"),
    ({"nonpad_kv_seqlen": np.array([-1, 2])}, ValueError, "nonpad_kv_seqlen: its entries must be between 0 and 3"),
    ({"nonpad_kv_seqlen": np.array([1.0, 2.0])}, TypeError, "nonpad_kv_seqlen: must hold integers, not float64"),
    ({"nonpad_kv_seqlen": np.array([1])}, ValueError, "nonpad_kv_seqlen: its shape is 1 but must be 2"),
    ({"nonpad_kv_seqlen": np.array([1, 2]), "opset": 23}, ValueError, "nonpad_kv_seqlen: is an input from opset 24 on"),
    ({"nonpad_kv_seqlen": np.array([1, 3]), "attn_mask": np.ones((3, 2), bool)}, ValueError, "attn_mask: has 2 columns, fewer than nonpad"),
    ({"attn_mask": np.ones((3, 3), np.int32)}, TypeError, "attn_mask: must be of float32, float16, bfloat16, bool, not int32"),
    ({"attn_mask": np.ones((3, 3))}, TypeError, "attn_mask: must be of float32, float16, bfloat16, bool, not float64"),
    ({"attn_mask": np.ones((), bool)}, ValueError, "attn_mask: must have 1 or 2 or 3 or 4 axes, not 0"),
    ({"attn_mask": np.ones((1, 2, 4, 3, 3), bool)}, ValueError, "attn_mask: must have 1 or 2 or 3 or 4 axes, not 5"),
    ({"attn_mask": np.ones((2, 3), bool)}, ValueError, "attn_mask: does not broadcast.*its shape is 2×3 and the scores' 2×4×3×3"),
    ({"attn_mask": np.ones((3, 4), bool)}, ValueError, "attn_mask: does not broadcast.*its shape is 3×4"),
    ({"attn_mask": np.ones((3, 2), bool), "opset": 23}, ValueError, "attn_mask: has fewer columns than there are keys, which opset 23"),
    ({"attn_mask": np.ones((3, 1), bool)}, ValueError, "attn_mask: a last axis of 1 may mean"),
    ({"scale": -1.0}, ValueError, "scale: must be finite and 0 or more"),
    ({"scale": np.inf}, ValueError, "scale: must be finite and 0 or more"),
    ({"softcap": -1.0}, ValueError, "softcap: must be 0"),
    ({"is_causal": 2}, ValueError, "is_causal: must be 0 or 1, not 2"),
    ({"qk_matmul_output_mode": 4}, ValueError, "qk_matmul_output_mode: must be 0, 1, 2 or 3, not 4"),
    ({"softmax_precision": 7}, ValueError, "softmax_precision: must be 1"),
    ({"left_window_size": -2}, ValueError, "left_window_size: must be -1"),
    ({"right_window_size": 1, "opset": 24}, ValueError, "left_window_size, right_window_size: are attributes from opset 25 on"),
    ({"opset": 22}, ValueError, "opset: must be 23, 24 or 25, not 22"),
    ({"K": np.ma.masked_less(X, 0.0)}, TypeError, "K: is a masked array"),
    ({"attn_mask": np.ma.masked_less(np.ones((3, 3), bool), True)}, TypeError, "attn_mask: is a masked array"),
]


@pytest.mark.parametrize("changes,error,text", REFUSED, ids=[f"{i}-{'-'.join(c)}" for i, (c, _, _) in enumerate(REFUSED)])
def test_refused(changes, error, text):
    libattn.onnx.attention(X, X, X)
    with pytest.raises(error, match=text):
        libattn.onnx.attention(**({"Q": X, "K": X, "V": X} | changes))


def model(opset, outputs, inputs=("Q", "K", "V"), **attributes):
    info = lambda name, kind=onnx.TensorProto.FLOAT: helper.make_tensor_value_info(name, kind, None)
    given = [info(name, onnx.TensorProto.INT64 if name == "nonpad_kv_seqlen" else onnx.TensorProto.FLOAT) for name in inputs if name]
    graph = helper.make_graph([helper.make_node("Attention", inputs, outputs, **attributes)], "one", given,
                              [info(name) for name in outputs if name])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def test_refused_in_a_model():
    feeds = {name: X for name in "QKV"}
    lengths = np.array([1, 2])
    slots = ("Q", "K", "V", "", "", "", "nonpad_kv_seqlen")
    assert len(onnx_models.run(model(28, ["Y"]), feeds)) == 1  # opsets after 25 have the operator of 25
    with pytest.raises(onnx.defs.SchemaError):
        onnx_models.run(model(22, ["Y"]), feeds)
    with pytest.raises(ValueError, match="present_value: is no output where nonpad_kv_seqlen is an input"):
        onnx_models.run(model(24, ["Y", "", "present_value"], slots), feeds | {"nonpad_kv_seqlen": lengths})
    with pytest.raises(ValueError, match="from opset 25 on"):
        onnx_models.run(model(24, ["Y"], left_window_size=1), feeds)
    with pytest.raises(onnx.reference.op_run.RuntimeTypeError, match="V: must be of float32"):
        onnx_models.run(model(25, ["Y"]), feeds | {"V": X.astype(np.float64)})


def test_refused_by_flex_attention():
    flex = libattn.onnx.flex_attention
    assert flex(X, X, X).shape == X.shape
    for changes, error, text in (
            ({"Q": X3}, ValueError, "Q: must have 4 axes, not 3"), ({"V": X.astype(np.float16)}, TypeError, "K, V: must be of Q's type"),
            ({"softmax_precision": 11, "score_mod": lambda s: s}, ValueError, "softmax_precision: DOUBLE"),
            ({"score_mod": lambda s: s[0]}, ValueError, "score_mod: must give 2×4×3×3 float32"),
            ({"prob_mod": lambda p: p.astype(np.float64)}, ValueError, "prob_mod: must give 2×4×3×3 float32.*not 2×4×3×3 float64"),
            ({"scale": -1.0}, ValueError, "scale: must be finite and 0 or more")):
        with pytest.raises(error, match=text):
            flex(**({"Q": X, "K": X, "V": X} | changes))
