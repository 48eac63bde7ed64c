"""For the examples: attention in float64, some keys at a time, with the error that docs/numerics.md allows for each element."""
import numpy as np

CHUNK = 2048


def attention_and_bound(q, k, v, diagonal=None):
    """q [heads_q, rows, dim]; k, v [heads_kv, keys, dim]; float32 results are meant. Row i sees keys up to i + diagonal (None: all).

    Returns the exact result and the bound: half an ulp + 2^-24 · Σp|v| · (8 + 2 max Σ|q k| scale + keys / 1024)."""
    heads, rows, dim = q.shape
    group, keys = heads // k.shape[0], k.shape[1]
    grouped = q.astype(np.float64).reshape(k.shape[0], group * rows, dim) / np.sqrt(dim)
    last = keys if diagonal is None else np.tile(np.arange(rows) + diagonal, group)[:, None]
    top, total, out, size, largest = -np.inf, 0.0, 0.0, 0.0, 0.0
    for first in range(0, keys, CHUNK):
        kc, vc = (x[:, first:first + CHUNK].astype(np.float64) for x in (k, v))
        scores = grouped @ kc.mT
        hidden = np.arange(first, first + kc.shape[1]) > last
        scores = np.where(hidden, -np.inf, scores)
        largest = np.maximum(largest, np.where(hidden, 0, np.abs(grouped) @ np.abs(kc).mT).max(-1, keepdims=True))
        higher = np.maximum(top, scores.max(-1, keepdims=True))
        shrink, weights = np.exp(top - higher), np.exp(scores - higher)
        top, total = higher, total * shrink + weights.sum(-1, keepdims=True)
        out, size = out * shrink + weights @ vc, size * shrink + weights @ np.abs(vc)
    out, size = out / total, size / total
    bound = 0.5 * np.spacing(np.abs(out).astype(np.float32)) + 2.0**-24 * size * (8 + 2 * largest + keys / 1024)
    return out.reshape(heads, rows, -1), bound.reshape(heads, rows, -1)


def verify(what, result, exact, bound):
    """Prints the largest error as a share of the bound; ends the program where it is past it."""
    share = float((np.abs(result.astype(np.float64) - exact) / bound).max())
    if not share <= 1:
        raise SystemExit(f"{what}: WRONG, the error is {share:.3g} times the bound")
    print(f"{what}: verified, the largest error is {share:.2f} of the bound")
