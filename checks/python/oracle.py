"""Attention by its definition (docs/semantics.md) in float64 NumPy, row by row, with the error that docs/numerics.md allows each."""
import math

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
FOLD = 512  # keys of a fold
PLACES = {"float32": (24, -149), "float16": (11, -24), "bfloat16": (8, -133)}  # significant bits; the exponent of the smallest number


def half_ulp(x, dtype):
    bits, least = PLACES[dtype.name]
    exponent = np.frexp(np.abs(x))[1]
    return np.ldexp(0.5, np.maximum(exponent - bits, least))


def band(i, rows, keys, causal, window, offset, align):
    """The keys lo <= j < hi that row i sees; j is on the diagonal where j = i + shift."""
    corner = align or causal
    shift = (offset or 0) + (keys - rows if corner == "bottom-right" else 0)
    left, right = (None, None) if window is None else window if isinstance(window, (tuple, list)) else (window - 1, 0)
    left, right = (None if side == -1 else side for side in (left, right))
    if causal:
        right = 0
    lo = 0 if left is None else max(0, i + shift - left)
    hi = keys if right is None else min(keys, i + shift + right + 1)
    return lo, hi, shift


def attention(q, k, v, *, mask=None, causal=False, window=None, offset=None, align=None, scale=None, softcap=0.0, sinks=None,
              alibi_slopes=None, len_q=None, len_kv=None, layout="bhld", out_dtype=None, weight_error=0.0):
    """(out, lse, bound of out, bound of lse), float64; layout is that of q, k, v and out."""
    dtype = q.dtype if out_dtype is None else out_dtype
    if layout == "blhd":
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    batch, heads, rows, dim = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    scale = float(np.float32(1 / math.sqrt(dim) if scale is None else scale))
    if mask is not None:
        mask = np.broadcast_to(mask, (batch, heads, rows, keys))
    out, out_bound = np.zeros((batch, heads, rows, v.shape[3])), np.zeros((batch, heads, rows, v.shape[3]))
    lse, lse_bound = np.full((batch, heads, rows), -math.inf), np.zeros((batch, heads, rows))
    for b, h in np.ndindex(batch, heads):
        of_rows = rows if len_q is None else int(np.broadcast_to(len_q, batch)[b])
        of_keys = keys if len_kv is None else int(np.broadcast_to(len_kv, batch)[b])
        sink = -math.inf if sinks is None else float(np.float32(sinks[h]))
        for i in range(of_rows):
            lo, hi, shift = band(i, of_rows, of_keys, causal, window, offset, align)
            j = np.arange(lo, max(lo, hi))
            score = scale * (k[b, h // group, j] @ q[b, h, i])
            size = abs(scale) * (np.abs(k[b, h // group, j]) @ np.abs(q[b, h, i]))
            if softcap:
                score = softcap * np.tanh(score / softcap)
            if mask is not None:
                row = mask[b, h, i, j]
                seen = row if row.dtype == bool else row.astype(np.float64) != -math.inf
                j, score, size = j[seen], score[seen], size[seen]
                if row.dtype != bool:
                    score, size = score + row[seen].astype(np.float64), size + np.abs(row[seen].astype(np.float64))
            if alibi_slopes is not None:
                bias = float(np.float32(alibi_slopes[h])) * np.abs(i + shift - j)
                score, size = score - bias, size + np.abs(bias)
            lse[b, h, i] = sink
            if len(j) == 0:
                continue
            top = max(score.max(), sink)
            weight = np.exp(score - top)
            total = weight.sum() + math.exp(sink - top)
            out[b, h, i] = weight @ v[b, h // group, j] / total
            lse[b, h, i] = top + math.log(total)
            largest = max(size[weight > 2.0**-125].max(initial=0.0), 0.0 if sink == -math.inf else abs(sink))
            share = 2.0**-24 * (8 + len(j) / (2 * FOLD))
            out_bound[b, h, i] = (share + 2.0**-23 * largest + weight_error) * (weight @ np.abs(v[b, h // group, j]) / total) + 1e-44
            lse_bound[b, h, i] = share + 2.0**-22 * largest
    out_bound = out_bound + half_ulp(out, dtype)
    lse_bound = lse_bound + 2 * half_ulp(np.where(np.isfinite(lse), lse, 0.0), np.dtype(np.float32))
    if layout == "blhd":
        out, out_bound = out.transpose(0, 2, 1, 3), out_bound.transpose(0, 2, 1, 3)
    return out, lse, out_bound, lse_bound


def assert_within(got, want, bound, what):
    """Every element; infinities must be the same."""
    got = np.asarray(got).astype(np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    if want.size == 0:
        return
    with np.errstate(invalid="ignore"):
        excess = np.where(got == want, 0.0, np.abs(got - want) / bound)
    excess = np.where(np.isnan(excess), math.inf, excess)
    at = np.unravel_index(excess.argmax(), excess.shape)
    assert excess[at] <= 1, f"{what}{list(map(int, at))} is {got[at]}, not {want[at]}: {excess[at]:.3g} times the bound"
