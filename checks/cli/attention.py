"""Attention by its definition in numpy, float64, and the bound that attn(1) states."""
import numpy as np


def attention(q, k, v, *, scale=None, softcap=0.0, mask=None, sinks=None, slopes=None, len_q=None, len_kv=None, causal=False,
              align="top-left", offset=0, window=(-1, -1)):
    """q, k, v as float64 [batch, heads, length, dim]; returns out, lse, and the bound on |out - exact| without the output's half ulp."""
    batch, heads, rows, dim = q.shape
    keys, group = k.shape[2], q.shape[1] // k.shape[1]
    scale = np.float32(1 / np.sqrt(dim)) if scale is None else np.float32(scale)
    out = np.zeros((batch, heads, rows, v.shape[3]))
    lse = np.full((batch, heads, rows), -np.inf)
    bound = np.zeros_like(out)
    left, right = window
    right = 0 if causal else right
    for b in range(batch):
        lq = rows if len_q is None else int(len_q[b])
        lk = keys if len_kv is None else int(len_kv[b])
        diagonal = offset + (lk - lq if align == "bottom-right" else 0)
        distance = np.arange(lq)[:, None] + diagonal - np.arange(lk)[None, :]  # positive: the key is to the left
        seen_band = np.ones((lq, lk), bool)
        if left >= 0:
            seen_band &= distance <= left
        if right >= 0:
            seen_band &= distance >= -right
        for h in range(heads):
            kh, vh = k[b, h // group, :lk], v[b, h // group, :lk]
            s = float(scale) * (q[b, h, :lq] @ kh.T)
            size = abs(float(scale)) * (np.abs(q[b, h, :lq]) @ np.abs(kh).T)
            if softcap:
                s = softcap * np.tanh(s / softcap)
            seen = seen_band.copy()
            if mask is not None:
                m = np.broadcast_to(mask, (batch, heads, rows, keys))[b, h, :lq, :lk]
                if mask.dtype == bool:
                    seen &= m
                else:
                    seen &= m != -np.inf
                    m = np.where(m == -np.inf, 0, m)
                    s, size = s + m, size + np.abs(m)
            if slopes is not None:
                s, size = s - slopes[h] * np.abs(distance), size + slopes[h] * np.abs(distance)
            for i in range(lq):
                j = np.flatnonzero(seen[i])
                terms = s[i, j] if sinks is None else np.append(s[i, j], sinks[h])
                if terms.size == 0:
                    continue
                top = terms.max()
                total = np.exp(terms - top).sum()
                lse[b, h, i] = top + np.log(total)
                p = np.exp(s[i, j] - top) / total
                out[b, h, i] = p @ vh[j]
                largest = max([0.0, *size[i, j], *([abs(sinks[h])] if sinks is not None else [])])
                bound[b, h, i] = 2.0**-24 * (p @ np.abs(vh[j])) * (8 + 2 * largest + j.size / 1024)
    return out, lse, bound


def half_ulp(values, name):
    bits, lowest = {"f32": (24, -126), "f16": (11, -14), "bf16": (8, -126)}[name]
    exponent = np.frexp(np.where(values == 0, 1e-300, np.abs(values)))[1] - 1
    return 0.5 * np.exp2(np.maximum(exponent, lowest) - bits + 1)


def assert_close(got, want, bound, name):
    """Four times the bound: what is under test here is that the command hands on the right problem; `attn run --verify` holds the rest."""
    error = np.abs(got - want)
    assert (error <= 4 * (half_ulp(want, name) + bound)).all(), error.max()
