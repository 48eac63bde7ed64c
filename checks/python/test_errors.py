"""What attention, merge and explain refuse: the kind of exception, and a text that names the argument, and both shapes where shapes clash.
Nothing is written by a call that is refused."""
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import libattn
from libattn import _native


def x(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def read_only(a):
    a.flags.writeable = False
    return a


Q, K = x(2, 4, 3, 8), x(2, 2, 5, 8)
SHAPES = [  # (q, k, v, texts)
    (x(4, 3, 8), K, K, ["q", "4 axes", "4×3×8"]),
    (Q, x(2, 5, 8), K, ["k", "4 axes", "2×5×8"]),
    (Q, x(3, 2, 5, 8), x(3, 2, 5, 8), ["k", "batch", "2×4×3×8", "3×2×5×8"]),
    (Q, K, x(2, 1, 5, 8), ["v", "heads", "2×2×5×8", "2×1×5×8"]),
    (Q, K, x(2, 2, 6, 8), ["v", "length", "2×2×5×8", "2×2×6×8"]),
    (Q, x(2, 2, 5, 9), K, ["k", "head dim", "2×4×3×8", "2×2×5×9"]),
    (Q, x(2, 3, 5, 8), x(2, 3, 5, 8), ["q", "multiple", "2×4×3×8", "2×3×5×8"]),
    (Q, x(2, 0, 5, 8), x(2, 0, 5, 8), ["q", "multiple", "2×0×5×8"]), (Q, K, x(2, 2, 5, 0), ["v", "head dim", "2×2×5×0"]),
    (x(2, 4, 8, 3).transpose(0, 1, 3, 2), K, K, ["q", "contiguous", "2×4×3×8"]),
    (torch.ones(2, 4, 8, 3).mT, K, K, ["q", "contiguous", "2×4×3×8"]), (Q, memoryview(x(2, 2, 5, 16)[..., ::2]), K, ["k", "contiguous"]),
    (x(2, 4, 3, 0), x(2, 2, 5, 0), K, ["q", "head dim", "2×4×3×0"]), (x(), K, K, ["q", "4 axes"]),
    (np.zeros((2, 4, 3, 8), [("a", np.float32), ("b", np.int8)])["a"], K, K, ["q", "strides", "multiples"]),
    (Q, K, x(2, 2, 8, 5).transpose(0, 1, 3, 2), ["v", "contiguous"]),
]
TYPES = [
    (Q.astype(np.float64), K, K, ["q", "float64"]), (Q, K.astype(np.int32), K, ["k", "int32"]), (Q, K, K > 0, ["v", "bool"]),
    (Q.astype(">f4"), K, K, ["q", ">f4"]), ([[1.0]], K, K, ["q", "list"]), (Q, None, K, ["k", "NoneType"]), (Q, "keys", K, ["k", "str"]),
    (Q, K, np.ma.masked_array(K), ["v", "masked"]), (Q, jnp.ones((2, 2, 5, 8), jnp.int8), K, ["k", "DLPack type"]),
    (Q, K, torch.ones(2, 2, 5, 8).to_sparse(), ["v", "memory"]), (b"keys", K, K, ["q", "bytes"]),
    (Q.astype(np.complex64), K, K, ["q", "complex64"]), (Q, torch.ones(2, 2, 5, 8, dtype=torch.float64), K, ["k", "float64"]),
]
VALUES = [  # options, texts
    ({"causal": "left"}, ["causal", "'left'"]), ({"causal": True}, ["causal", "top-left", "bottom-right"]),
    ({"causal": "top-left", "align": "bottom-right"}, ["align", "bottom-right", "top-left"]), ({"align": "left"}, ["align", "'left'"]),
    ({"window": 0}, ["window", "0"]), ({"window": (1, 2, 3)}, ["window"]), ({"window": (-2, 1)}, ["window"]),
    ({"window": 2**64}, ["window", "64 bits"]), ({"window": (1, -2**70)}, ["window", "64 bits"]),
    ({"offset": 2**63}, ["offset"]), ({"scale": float("nan")}, ["scale"]), ({"scale": float("inf")}, ["scale"]),
    ({"scale": 1e39}, ["scale"]),
    ({"softcap": -1.0}, ["softcap"]), ({"softcap": float("nan")}, ["softcap"]), ({"softcap": 1e-50}, ["softcap"]),
    ({"layout": "hbld"}, ["layout", "bhld"]), ({"device": "gpu"}, ["device", "'gpu'"]), ({"precision": "half"}, ["precision", "exact"]),
    ({"threads": -1}, ["threads"]), ({"threads": 1025}, ["threads"]), ({"threads": 2**64}, ["threads", "64 bits"]),
    ({"sinks": [0, 0, 0, 1e300]}, ["sinks", "float32"]), ({"alibi_slopes": [1e39] * 4}, ["alibi_slopes", "float32"]),
    ({"mask": x(3, 4)}, ["mask", "3×4", "2×4×3×5"]), ({"mask": x(1, 2, 4, 3, 5)}, ["mask", "1×2×4×3×5"]),
    ({"sinks": x(3)}, ["sinks", "3", "4"]), ({"sinks": x(1, 4)}, ["sinks", "1×4"]), ({"alibi_slopes": x(2)}, ["alibi_slopes", "2", "4"]),
    ({"len_q": [1, 4]}, ["len_q", "3"]), ({"len_kv": [-1, 4]}, ["len_kv", "5"]), ({"len_kv": [1, 2, 3]}, ["len_kv", "3", "2"]),
    ({"len_q": 9}, ["len_q", "3"]), ({"len_q": [[1, 2]]}, ["len_q", "1×2", "2"]), ({"len_kv": [[1], [2, 3]]}, ["len_kv"]),
    ({"out": x(2, 4, 3, 7)}, ["out", "2×4×3×7", "2×4×3×8"]), ({"out": x(2, 3, 4, 8)}, ["out", "2×3×4×8"]),
    ({"out": read_only(x(2, 4, 3, 8))}, ["out", "read-only"]), ({"out": jnp.ones((2, 4, 3, 8))}, ["out", "read-only"]),
    ({"out": np.broadcast_to(x(1, 4, 3, 8), (2, 4, 3, 8))}, ["out"]), ({"out": memoryview(read_only(x(2, 4, 3, 8)))}, ["out", "read-only"]),
    ({"out": x(2, 4, 8, 3).transpose(0, 1, 3, 2)}, ["out", "contiguous"]),
    ({"out": np.lib.stride_tricks.as_strided(x(8), (2, 4, 3, 8), (0, 0, 0, 4))}, ["out", "overlap", "2×4×3×8"]),
]
WRONG_TYPES = [
    ({"window": 1.5}, ["window", "integer"]), ({"offset": "1"}, ["offset", "integer"]), ({"scale": "1"}, ["scale", "number"]),
    ({"softcap": None}, ["softcap", "number"]), ({"threads": 1.0}, ["threads", "integer"]), ({"threads": "2"}, ["threads", "integer"]),
    ({"mask": x(3, 5).astype(np.int64)}, ["mask", "int64"]), ({"mask": [[True]]}, ["mask", "list"]),
    ({"len_q": [1.0, 2.0]}, ["len_q", "integers"]), ({"len_kv": np.ones(2, ml_dtypes.bfloat16)}, ["len_kv", "integers", "bfloat16"]),
    ({"len_kv": [True, True]}, ["len_kv", "bool"]), ({"window": (1.0, 2)}, ["window", "integer"]),
    ({"window": torch.tensor(1, device="meta")}, ["window"]),
    ({"sinks": ["a"] * 4}, ["sinks"]), ({"out": Q.astype(np.float64)}, ["out", "float64"]),
    ({"out": [1]}, ["out", "list"]),
]


def says(error, texts):
    text = str(error.value)
    assert text.startswith(texts[0]) and all(part in text for part in texts), text


@pytest.mark.parametrize("function", [libattn.attention, libattn.explain])
@pytest.mark.parametrize("q, k, v, texts", SHAPES)
def test_shapes(function, q, k, v, texts):
    with pytest.raises(ValueError) as error:
        function(q, k, v)
    says(error, texts)


@pytest.mark.parametrize("function", [libattn.attention, libattn.explain])
@pytest.mark.parametrize("q, k, v, texts", TYPES)
def test_types(function, q, k, v, texts):
    with pytest.raises(TypeError) as error:
        function(q, k, v)
    says(error, texts)


@pytest.mark.parametrize("options, texts", VALUES)
def test_values(options, texts):
    """Also where a call that differs in this alone was taken before, and is remembered."""
    out = options.get("out", np.empty((2, 4, 3, 8), np.float32))
    if "out" not in options:
        libattn.attention(Q, K, K, out=out, threads=1)
        out[:] = 7
    before = np.asarray(out).copy()
    with pytest.raises(ValueError) as error:
        libattn.attention(Q, K, K, **{"out": out, "threads": 1, **options})
    says(error, texts)
    assert np.array_equal(out, before)


@pytest.mark.parametrize("options, texts", WRONG_TYPES)
def test_wrong_types(options, texts):
    with pytest.raises(TypeError) as error:
        libattn.attention(Q, K, K, **options)
    says(error, texts)


def test_a_remembered_call_makes_no_integer_of_a_float():
    libattn.attention(Q, K, K, window=(1, 2), offset=1, threads=1)
    for options in ({"window": (1.0, 2)}, {"offset": 1.0}, {"threads": np.float64(1)}):
        with pytest.raises(TypeError) as error:
            libattn.attention(Q, K, K, **{"window": (1, 2), "offset": 1, "threads": 1} | options)
        says(error, [next(iter(options)), "integer"])


def test_overlaps():
    flat = x(300)
    out = flat[:192].reshape(2, 4, 3, 8)
    for options in ({"mask": flat[180:].reshape(2, 4, 3, 5)}, {"sinks": flat[:4]}, {"alibi_slopes": flat[188:192]}):
        with pytest.raises(ValueError) as error:
            libattn.attention(Q, K, K, out=out, **options)
        says(error, ["out", "overlaps"])
    assert (flat == 1).all()
    base = x(2, 4, 3, 8)
    for out in (base, base[:, :, ::-1]):
        with pytest.raises(ValueError) as error:
            libattn.attention(base, K, K, out=out)
        says(error, ["out", "2×4×3×8"])
    assert (base == 1).all()


def test_misaligned():
    raw = np.zeros(2 * 2 * 5 * 8 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(2, 2, 5, 8)
    with pytest.raises(ValueError) as error:
        libattn.attention(Q, raw, K)
    says(error, ["k", "address", "2×2×5×8"])


def test_gradients():
    q, k = torch.ones(1, 1, 2, 4, requires_grad=True), torch.ones(1, 1, 2, 4)
    with pytest.raises(ValueError) as error:
        libattn.attention(q, k, k)
    says(error, ["q", "requires_grad", "no_grad"])
    with torch.no_grad():
        assert not libattn.attention(q, k, k).requires_grad
    for name, tensor in (("mask", torch.zeros(2, 2)), ("sinks", torch.zeros(1)), ("out", torch.zeros(1, 1, 2, 4))):
        with pytest.raises(ValueError) as error:
            libattn.attention(k, k, k, **{name: tensor.requires_grad_()})
        says(error, [name, "requires_grad"])


def test_tangents():
    k = torch.ones(1, 1, 2, 4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4))
        for arrays, options, name in (((k, k, dual), {}, "v"), ((k, k, k), {"sinks": dual[0, 0, 0, :1]}, "sinks")):
            with pytest.raises(ValueError) as error:
                libattn.attention(*arrays, **options)
            says(error, [name, "tangent"])
        assert torch.equal(libattn.attention(dual.detach(), k, k), k)


def test_tensors_that_are_to_be_negated():
    k = torch.ones(1, 1, 2, 4)
    with pytest.raises(ValueError) as error:
        libattn.attention(k, torch._neg_view(k), k)
    says(error, ["k", "resolve_neg"])


def test_devices():
    k = torch.ones(1, 1, 2, 4)
    with pytest.raises(ValueError) as error:
        libattn.attention(k, k.to("meta"), k)
    says(error, ["k", "CPU"])

    class Elsewhere:
        def __init__(self, kind):
            self.kind = kind

        def __dlpack_device__(self):
            return self.kind, 0

        def __dlpack__(self, **options):
            raise AssertionError("not to be asked")

    with pytest.raises(ValueError) as error:
        libattn.attention(k, k, Elsewhere(2))
    says(error, ["v", "on the GPU cuda:0, but q in the CPU's memory"])
    with pytest.raises(ValueError) as error:
        libattn.attention(k, k, Elsewhere(8))
    says(error, ["v", "a device of DLPack's type 8"])
    for given, texts in (("cuda", ["device", "'cuda'", "CPU's memory"]), ("cuda:1", ["device", "'cuda:1'", "CPU's memory"]),
                         ("cpu:0", ["device", "'cpu:0'"]), ("cuda:", ["device", "'cuda:'"]), ("cuda:-1", ["device", "'cuda:-1'"])):
        with pytest.raises(ValueError) as error:
            libattn.attention(k, k, k, device=given)
        says(error, texts)
        with pytest.raises(ValueError) as error:
            libattn.merge([(k, k[..., 0])], device=given)
        says(error, texts)


def test_traced_by_jax():
    with pytest.raises(TypeError) as error:
        jax.jit(lambda a: libattn.attention(a, a, a))(jnp.ones((1, 1, 2, 4)))
    says(error, ["q", "traced"])


@pytest.mark.parametrize("states, texts", [
    ([], ["states", "one or more"]), ([(x(1, 2, 3, 4),)], ["states", "pairs"]), (3, ["states", "int"]),
    ([(x(1, 2, 3, 4), x(1, 2, 4))], ["states[0] lse", "1×2×4", "1×2×3"]),
    ([(x(1, 2, 3, 4), x(1, 2, 3)), (x(1, 2, 3, 5), x(1, 2, 3))], ["states[1] out", "1×2×3×5", "1×2×3×4"]),
    ([(x(1, 2, 3, 4, dtype=np.float16), x(1, 2, 3))], ["states[0] out", "f16"]),
    ([(x(1, 0, 3, 4), x(1, 0, 3))], ["states[0] out", "one head", "1×0×3×4"]), ([(x(2, 3, 4), x(2, 3))], ["states[0] out", "4 axes"]),
])
def test_merge(states, texts):
    with pytest.raises((TypeError, ValueError)) as error:
        libattn.merge(states)
    says(error, texts)


@pytest.mark.parametrize("make, kind, texts", [
    (lambda state: x(1, 2, 3, 5), ValueError, ["out", "1×2×3×5", "1×2×3×4"]),
    (lambda state: read_only(x(1, 2, 3, 4)), ValueError, ["out", "read-only"]),
    (lambda state: jnp.ones((1, 2, 3, 4)), ValueError, ["out", "read-only"]),
    (lambda state: x(1, 2, 3, 8)[..., ::2], ValueError, ["out", "contiguous", "1×2×3×4"]),
    (lambda state: x(1, 4, 3, 4)[:, ::2], ValueError, ["out", "dense", "1×2×3×4"]),
    (lambda state: np.zeros(97, np.uint8)[1:].view(np.float32).reshape(1, 2, 3, 4), ValueError, ["out", "address", "1×2×3×4"]),
    (lambda state: state, ValueError, ["states", "overlaps", "1×2×3×4"]),
    (lambda state: x(1, 2, 3, 4, dtype=np.float64), TypeError, ["out", "float64"]), (lambda state: [1], TypeError, ["out", "list"]),
])
def test_merge_into(make, kind, texts):
    state = x(1, 2, 3, 4), x(1, 2, 3)
    out = make(state[0])
    before = np.array(out)
    with pytest.raises(kind) as error:
        libattn.merge([state, state], out=out)
    says(error, texts)
    assert np.array_equal(out, before)


@pytest.mark.parametrize("options, texts", [
    ({"layout": "hbld"}, ["layout"]), ({"device": "gpu"}, ["device"]), ({"threads": -1}, ["threads"]), ({"threads": 1.0}, ["threads"]),
])
def test_merge_values(options, texts):
    with pytest.raises((TypeError, ValueError)) as error:
        libattn.merge([(x(1, 2, 3, 4), x(1, 2, 3))], **options)
    says(error, texts)


@pytest.mark.parametrize("options, texts", [case for case in VALUES + WRONG_TYPES if "out" not in case[0]])
def test_explain_refuses_what_a_call_does(options, texts):
    with pytest.raises((TypeError, ValueError)) as error:
        libattn.explain(Q, K, K, **options)
    says(error, texts)


def test_no_library(tmp_path):
    """The text says where it was looked for."""
    (tmp_path / "text.so").write_text("no library")
    for path in (tmp_path / "none.so", tmp_path / "text.so"):
        program = "import libattn\ntry: libattn.info()\nexcept ImportError as why: print(why)"
        env = {**os.environ, "LIBATTN_LIBRARY": str(path)}
        said = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True).stdout
        assert said.startswith("libattn") and str(path) in said


def test_statuses():
    """What only the C library can tell has its code."""
    with pytest.raises(libattn.StatusError) as error:
        libattn.attention(Q, K, K, scale=float("nan"))
    assert error.value.status > 0 and isinstance(error.value, ValueError)
    again = pickle.loads(pickle.dumps(error.value))  # as a pool of processes does
    assert type(again) is libattn.StatusError and (str(again), again.status) == (str(error.value), error.value.status)


def test_another_library(monkeypatch):
    """A file that is no library, and one that is another's; an empty variable is none."""
    for file in (__file__, np.linalg._umath_linalg.__file__):
        monkeypatch.setenv("LIBATTN_LIBRARY", file)
        with pytest.raises(ImportError) as error:
            _native.library.__wrapped__()
        assert file in str(error.value)
    monkeypatch.setenv("LIBATTN_LIBRARY", "")
    assert "" not in _native.candidates()


def test_no_sequences():
    """No lengths for no sequences, though NumPy makes float64 of an empty list."""
    none = x(0, 2, 3, 8)
    assert libattn.attention(none, none, none, len_q=[], len_kv=()).shape == none.shape


@pytest.mark.parametrize("name, value", [("len_kv", [5, 5]), ("len_q", [3, 3]), ("sinks", [0.0] * 4), ("alibi_slopes", [1.0] * 4)])
def test_masked_vectors(name, value):
    with pytest.raises(TypeError) as error:
        libattn.attention(Q, K, K, **{name: np.ma.masked_array(value)})
    says(error, [name, "masked"])
