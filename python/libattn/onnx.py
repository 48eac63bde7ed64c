"""The ONNX operators Attention (opsets 23, 24 and 25) and FlexAttention over libattn.attention: functions of NumPy arrays, and classes for
onnx's ReferenceEvaluator.

    evaluator = onnx.reference.ReferenceEvaluator(model, new_ops=libattn.onnx.OPERATORS)

What the operators leave open, and float64, which libattn does not compute in, are errors."""
from __future__ import annotations

import numpy as np
from . import _attention as core
from ._arrays import refuse_masked
from ._attention import times
from ._extras import extra

with extra("onnx", __name__):
    import onnx
    from onnx.reference.op_run import OpRun, RuntimeTypeError

FLOATS = ("float32", "float16", "bfloat16")
FLOAT, FLOAT16, DOUBLE, BFLOAT16 = (int(getattr(onnx.TensorProto, name)) for name in ("FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16"))
SCALED, CAPPED, BIASED, PROBABILITIES = range(4)  # what qk_matmul_output_mode asks for
VERSIONS = (23, 24, 25)  # that have a text of their own
NO_OUTPUT = np.empty(0, np.float32)  # in the place of an output without a name


def tensor(name, x, ranks, kinds=FLOATS):
    """x as a NumPy array, of a rank and type that the operator and libattn both take."""
    refuse_masked(x, name)
    if not isinstance(x, np.ndarray):
        if isinstance(x, (list, tuple)) or not hasattr(x, "__array__"):
            raise TypeError(f"{name}: must be an array, not {type(x).__name__}")
        x = np.asarray(x)
    if x.ndim not in ranks:
        raise ValueError(f"{name}: must have {' or '.join(map(str, ranks))} axes, not {x.ndim}; its shape is {times(x.shape)}")
    if x.dtype.name not in kinds:
        raise TypeError(f"{name}: must be of {', '.join(kinds)}, not {x.dtype}" + (
            "; libattn computes in float32: cast the inputs" if x.dtype == np.float64 else ""))
    return x


def whole(name, value, allowed, text):
    value = core.whole(name, value)
    if not allowed(value):
        raise ValueError(f"{name}: must be {text}, not {value}")
    return value


def split(name, x, heads, attribute):
    """Rank 3, (batch, length, heads · dim), as a view of (batch, heads, length, dim); rank 4 as it is. A copy only where the last axis is
    not contiguous."""
    if x.ndim == 3:
        batch, length, width = x.shape
        if width % heads:
            raise ValueError(f"{name}: its last axis, {width}, must be a multiple of {attribute}, {heads}; its shape is {times(x.shape)}")
        x = x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
    return x if x.shape[3] <= 1 or x.strides[3] == x.itemsize else np.ascontiguousarray(x)


def separate(Q, K, V, q_num_heads, kv_num_heads, opset):
    """Q, K and V as (batch, heads, length, dim)."""
    if not Q.ndim == K.ndim == V.ndim:
        raise ValueError(f"K, V: must have as many axes as Q; Q is {times(Q.shape)}, K {times(K.shape)} and V {times(V.shape)}")
    heads = {"q_num_heads": q_num_heads, "kv_num_heads": kv_num_heads}
    for name, value in heads.items():
        if value is not None:
            whole(name, value, lambda n: n >= 1, "1 or more")
        elif Q.ndim == 3:
            raise ValueError(f"{name}: must be given with inputs of 3 axes; Q is {times(Q.shape)}")
    if Q.ndim == 4:
        for (name, value), (letter, x) in zip(heads.items(), (("Q", Q), ("K", K))):
            if value is not None and (opset >= 25 or value != x.shape[1]):
                raise ValueError(f"{name}: goes with inputs of 3 axes only; {letter} is {times(x.shape)}")
    return [split(name, x, heads[attribute], attribute) for name, x, attribute in
            (("Q", Q, "q_num_heads"), ("K", K, "kv_num_heads"), ("V", V, "kv_num_heads"))]


def join(name, past, other, x):
    """past_key before K, or past_value before V, on the length axis."""
    past = tensor(name, past, (4,))
    expected = (x.shape[0], x.shape[1], past.shape[2], x.shape[3])
    if past.shape != expected or past.dtype != x.dtype:
        raise ValueError(f"{name}: must be {times((x.shape[0], x.shape[1], 'any', x.shape[3]))} {x.dtype} as {other} is, "
                         f"not {times(past.shape)} {past.dtype}; {other}'s heads are {times(x.shape)}")
    return np.concatenate((past, x), axis=2)


def check_mask(mask, full, opset):
    mask = tensor("attn_mask", mask, (1, 2, 3, 4), (*FLOATS, "bool"))
    columns, keys = mask.shape[-1], full[3]
    about = f"its shape is {times(mask.shape)} and the scores' {times(full)}"
    if any(n not in (1, m) for n, m in zip(mask.shape[-2::-1], full[2::-1])) or columns > max(keys, 1):
        raise ValueError(f"attn_mask: does not broadcast to (batch, heads of Q, rows, keys); {about}")
    if columns < keys and opset < 24:
        raise ValueError(f"attn_mask: has fewer columns than there are keys, which opset {opset} has no rule for; {about}")
    if columns == 1 < keys:
        raise ValueError(f"attn_mask: a last axis of 1 may mean one value for all keys, or that all others are hidden; expand it; {about}")
    return mask


def check_lengths(lengths, batch, keys, past, mask):
    if past is not None:
        raise ValueError("nonpad_kv_seqlen: cannot go with past_key and past_value")
    lengths = np.asarray(lengths)
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"nonpad_kv_seqlen: must hold integers, not {lengths.dtype}")
    if lengths.shape != (batch,):
        raise ValueError(f"nonpad_kv_seqlen: its shape is {times(lengths.shape)} but must be {batch}, one for each sequence")
    if batch and not (0 <= int(lengths.min()) and int(lengths.max()) <= keys):
        raise ValueError(f"nonpad_kv_seqlen: its entries must be between 0 and {keys}, the keys that there are, and are {lengths}")
    if batch and mask is not None and mask.shape[-1] < int(lengths.max()):
        raise ValueError(f"attn_mask: has {mask.shape[-1]} columns, fewer than nonpad_kv_seqlen's largest entry, {lengths.max()}")
    return lengths.astype(np.int64)


class Call:
    """The operator's inputs and attributes, checked: q, k and v of four axes, k and v with the past, and which keys a row sees."""

    def __init__(self, Q, K, V, mask, past_key, past_value, lengths, attributes, opset):
        if opset not in VERSIONS:
            raise ValueError(f"opset: must be 23, 24 or 25, not {opset!r}")
        Q, K, V = (tensor(name, x, (3, 4)) for name, x in (("Q", Q), ("K", K), ("V", V)))
        if K.dtype != Q.dtype:
            raise TypeError(f"K: must be of Q's type, {Q.dtype}, not {K.dtype}")
        self.rank = Q.ndim
        self.q, k, v = separate(Q, K, V, attributes.pop("q_num_heads"), attributes.pop("kv_num_heads"), opset)
        if (past_key is None) != (past_value is None):
            raise ValueError("past_key, past_value: must be given together")
        self.past = 0
        if past_key is not None:
            k, v = join("past_key", past_key, "K", k), join("past_value", past_value, "V", v)
            self.past = k.shape[2] - K.shape[2 if self.rank == 4 else 1]
        self.k, self.v = k, v
        batch, heads, rows, _ = self.q.shape
        self.full = (batch, heads, rows, k.shape[2])
        core.check_shapes(*(core.Tensor(name, core.arrays.NumPy, core.arrays.NumPy.look(x)[0], "bhld") for name, x in
                            (("Q", self.q), ("K", self.k), ("V", self.v))), "bhld")
        self.mask = None if mask is None else check_mask(mask, self.full, opset)
        self.lengths = None if lengths is None else check_lengths(lengths, batch, k.shape[2], past_key, self.mask)
        self.options(opset, **attributes)

    def options(self, opset, scale, is_causal, softmax_precision, softcap, qk_matmul_output_mode, left_window_size, right_window_size):
        if self.lengths is not None and opset < 24:
            raise ValueError("nonpad_kv_seqlen: is an input from opset 24 on")
        self.scale = 1 / np.sqrt(max(self.q.shape[3], 1)) if scale is None else core.number("scale", scale)
        if not (self.scale >= 0 and np.isfinite(self.scale)):
            raise ValueError(f"scale: must be finite and 0 or more, as the operator takes its square root, not {scale!r}")
        self.causal = whole("is_causal", is_causal, lambda n: n in (0, 1), "0 or 1")
        self.softcap = core.number("softcap", softcap)
        self.mode = whole("qk_matmul_output_mode", qk_matmul_output_mode, lambda n: SCALED <= n <= PROBABILITIES, "0, 1, 2 or 3")
        self.precision = check_precision(softmax_precision)
        self.left, self.right = (whole(f"{side}_window_size", n, lambda n: n >= -1, "-1 (no limit), 0 or more")
                                 for side, n in (("left", left_window_size), ("right", right_window_size)))
        if opset < 25 and (self.left, self.right) != (-1, -1):
            raise ValueError("left_window_size, right_window_size: are attributes from opset 25 on")

    def output(self):
        """Y, of (batch, heads, rows, dim) or the rank 3 form of it."""
        batch, heads, rows, _ = self.full
        dim = self.v.shape[3]
        if self.rank == 4:
            y = view = np.empty((batch, heads, rows, dim), self.q.dtype)
        else:
            y = np.empty((batch, rows, heads * dim), self.q.dtype)
            view = y.reshape(batch, rows, heads, dim).transpose(0, 2, 1, 3)
        self.run(view)
        return y

    def run(self, out):
        """A mask that is short of columns hides what it is short of: those keys are left out."""
        keys = self.full[3] if self.mask is None else self.mask.shape[-1]
        align, offset = ("top-left", self.past) if self.lengths is None else ("bottom-right", 0)
        window = None if self.left == self.right == -1 else (self.left, self.right)
        core.attention(self.q, self.k[:, :, :keys], self.v[:, :, :keys], mask=self.mask, causal=bool(self.causal), window=window,
                       offset=offset, align=align, scale=self.scale, softcap=self.softcap, len_kv=self.lengths, out=out,
                       device="reference" if self.precision == DOUBLE else None)

    def visible(self):
        """What band, lengths and a mask that is short of columns let through: bool, broadcasting to the scores."""
        batch, _, rows, keys = self.full
        diagonal = (np.arange(rows) + self.past)[None, None, :, None]
        key = np.arange(keys)[None, None, None, :]
        seen = np.ones((1, 1, 1, keys), bool)
        if self.lengths is not None:
            valid = self.lengths.reshape(batch, 1, 1, 1)
            diagonal, seen = np.arange(rows)[None, None, :, None] + valid - rows, key < valid
        if self.mask is not None:
            seen = seen & (key < max(self.mask.shape[-1], 1))
        right = 0 if self.causal else self.right
        if self.left >= 0:
            seen = seen & (key >= diagonal - self.left)
        return seen & (key <= diagonal + right) if right >= 0 else seen

    def scores(self):
        """qk_matmul_output, in float64 and then of Q's type: libattn itself never holds a matrix of scores."""
        batch, heads, rows, keys = self.full
        with np.errstate(all="ignore"):
            q, k = self.q.astype(np.float64), self.k.astype(np.float64)
            grouped = q.reshape(batch, k.shape[1], heads // k.shape[1], rows, q.shape[3]) @ k[:, :, None].swapaxes(3, 4)
            scores = grouped.reshape(self.full) * self.scale
            if self.mode >= CAPPED and self.softcap > 0:
                scores = np.tanh(scores / self.softcap) * self.softcap
            if self.mode >= BIASED:
                scores = np.where(self.visible(), self.biased(scores), -np.inf)
            if self.mode == PROBABILITIES:
                scores = softmax(scores)
            return scores.astype(self.q.dtype)

    def biased(self, scores):
        if self.mask is None:
            return scores
        mask = self.mask
        short = self.full[3] - mask.shape[-1]
        if short > 0:
            mask = np.concatenate((mask, np.zeros((*mask.shape[:-1], short), mask.dtype)), axis=-1)
        if mask.dtype == np.bool_:
            return np.where(mask, scores, -np.inf)
        mask = mask.astype(np.float64)
        return np.where(np.isneginf(mask), -np.inf, scores + mask)


def check_precision(value):
    """softmax_precision: the scores and the softmax are of float32 for all but DOUBLE, which the reference device does."""
    if value is None:
        return FLOAT
    return whole("softmax_precision", value, lambda n: n in (FLOAT, FLOAT16, DOUBLE, BFLOAT16),
                 "1 (FLOAT), 10 (FLOAT16), 11 (DOUBLE) or 16 (BFLOAT16)")


def softmax(scores):
    """Of the last axis; rows that see nothing are 0."""
    if scores.shape[-1] == 0:
        return scores
    most = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(most), 0, most))
    return weights / np.where(np.isneginf(most), 1, weights.sum(axis=-1, keepdims=True))


def attention(Q, K, V, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *, scale=None, is_causal=0, q_num_heads=None,
              kv_num_heads=None, softmax_precision=None, softcap=0.0, qk_matmul_output_mode=0, left_window_size=-1, right_window_size=-1,
              qk_matmul_output=False, opset=25):
    """The operator Attention: (Y, present_key, present_value, qk_matmul_output), NumPy arrays of Q's type (present_value: V's).

    Q, K, V           (batch, heads, length, dim), or (batch, length, heads · dim) with q_num_heads and kv_num_heads; float32, float16 or
                      bfloat16 (of ml_dtypes), K of Q's type.
    attn_mask         bool (True: takes part) or float (added after the softcap), broadcasting to (batch, heads of Q, rows, all keys).
                      From opset 24 on its last axis may be shorter: the other keys are hidden.
    past_key, past_value   (batch, heads of K, past, dim): come before K and V.
    nonpad_kv_seqlen  [batch], from opset 24 on and without a past: how many of the keys are no padding. present_key and present_value are
                      None with it.
    is_causal, left_window_size, right_window_size   as seen from row i at key i + past, or i + nonpad_kv_seqlen - rows.
    softmax_precision no less than float32 in any case; DOUBLE (11) computes in double, slowly.
    qk_matmul_output  True: also return the matrix that qk_matmul_output_mode names (0: scale · Q Kᵀ, 1: after the softcap, 2: after
                      the masks, 3: the probabilities; a row that sees no key is 0), by NumPy in float64. None otherwise.
    opset             whose rules hold: 23, 24 or 25.

    A row that sees no key is 0. Raises TypeError and ValueError whose text names the input or attribute, also for what the operator's text
    leaves open: a negative scale, a mask whose last axis of 1 may be meant as short, and a short mask before opset 24."""
    attributes = {"q_num_heads": q_num_heads, "kv_num_heads": kv_num_heads, "scale": scale, "is_causal": is_causal, "softcap": softcap,
                  "softmax_precision": softmax_precision, "qk_matmul_output_mode": qk_matmul_output_mode,
                  "left_window_size": left_window_size, "right_window_size": right_window_size}
    call = Call(Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen, attributes, opset)
    present = (call.k, call.v) if call.lengths is None else (None, None)
    return call.output(), *present, call.scores() if qk_matmul_output else None


def modified(name, modifier, x):
    y = np.asarray(modifier(x))
    if y.shape != x.shape or y.dtype != x.dtype:
        raise ValueError(f"{name}: must give {times(x.shape)} {x.dtype}, as it takes, not {times(y.shape)} {y.dtype}")
    return y


def flex_attention(Q, K, V, *, scale=None, score_mod=None, prob_mod=None, softmax_precision=None):
    """The operator FlexAttention (ai.onnx.preview 1): Y, a NumPy array of Q's type.

    Q, K, V   (batch, heads, length, dim); float32, float16 or bfloat16 (of ml_dtypes), all of one type.
    score_mod, prob_mod   functions of an array (batch, heads of Q, rows, keys), of softmax_precision's type (default: float32), to such.

    A modifier takes and gives a whole matrix, which libattn does without: NumPy computes that. Modified scores are then libattn's additive
    mask to scores of 0; with a prob_mod no softmax is left to do, and all is NumPy's. A row whose scores are all -inf is 0."""
    q, k, v = (tensor(name, x, (4,)) for name, x in (("Q", Q), ("K", K), ("V", V)))
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"K, V: must be of Q's type, {q.dtype}, not {k.dtype} and {v.dtype}")
    attributes = {"scale": scale, "softmax_precision": softmax_precision, "q_num_heads": None, "kv_num_heads": None, "is_causal": 0,
                  "softcap": 0.0, "qk_matmul_output_mode": SCALED, "left_window_size": -1, "right_window_size": -1}
    call = Call(q, k, v, None, None, None, None, attributes, 25)
    if score_mod is None and prob_mod is None:
        return call.output()
    if call.precision == DOUBLE:
        raise ValueError("softmax_precision: DOUBLE (11) with a modifier; libattn's scores are float32")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(call.precision)
    call.q, call.k = call.q.astype(np.float32), call.k.astype(np.float32)
    scores = call.scores().astype(dtype)
    if score_mod is not None:
        scores = modified("score_mod", score_mod, scores)
    if prob_mod is None:
        flat = [np.broadcast_to(np.zeros((), x.dtype), (*x.shape[:3], 1)) for x in (q, k)]
        return core.attention(*flat, call.v, mask=scores, scale=0.0)
    with np.errstate(all="ignore"):
        weights = modified("prob_mod", prob_mod, softmax(scores.astype(np.float64)).astype(dtype)).astype(np.float64)
        groups = weights.reshape(q.shape[0], k.shape[1], -1, *weights.shape[2:]) @ v[:, :, None].astype(np.float64)
        return groups.reshape(*q.shape[:3], v.shape[3]).astype(q.dtype)


class Attention(OpRun):
    """Attention for ReferenceEvaluator(model, new_ops=[libattn.onnx.Attention]): opsets 23, 24 and 25."""

    op_domain = ""

    def _run(self, *inputs, **attributes):
        version = onnx.defs.get_schema("Attention", self.run_params["opsets"][self.op_domain], self.op_domain).since_version
        asked = [name != "" for name in self.onnx_node.output]
        try:
            results = attention(*inputs, **attributes, opset=version, qk_matmul_output=asked[3:4] == [True])
        except TypeError as why:
            raise RuntimeTypeError(str(why)) from why
        for name, result, wanted in zip(("Y", "present_key", "present_value"), results, asked):
            if wanted and result is None:
                raise ValueError(f"{name}: is no output where nonpad_kv_seqlen is an input")
        return tuple(result if wanted else NO_OUTPUT for result, wanted in zip(results, asked))


class FlexAttention(OpRun):
    """FlexAttention for ReferenceEvaluator(model, new_ops=[libattn.onnx.FlexAttention])."""

    op_domain = "ai.onnx.preview"

    def _run(self, Q, K, V, scale=None, score_mod=None, prob_mod=None, softmax_precision=None, attributes=None):
        def function(graph):
            return None if graph is None else lambda x: graph.run(None, {graph.input_names[0]: x}, attributes=attributes)[0]
        try:
            return (flex_attention(Q, K, V, scale=scale, score_mod=function(score_mod), prob_mod=function(prob_mod),
                                   softmax_precision=softmax_precision),)
        except TypeError as why:
            raise RuntimeTypeError(str(why)) from why


OPERATORS = [Attention, FlexAttention]  # for new_ops
