"""The reference: attention in float64 on the stored values, with what the library's error bound needs beside it."""
import dataclasses

import numpy as np

from problem import UNBOUNDED

SCORES = 1 << 22  # scores, or elements of K and V, held at a time


@dataclasses.dataclass
class Reference:
    """Of the sequences `batches` (b of them) and their query rows `rows` (l of them), in increasing order."""
    out: np.ndarray      # (b, Hq, l, Dv)
    lse: np.ndarray      # (b, Hq, l)
    count: np.ndarray    # (b, Hq, l) keys that the row sees
    weight: np.ndarray   # as out: sum of p |v|
    largest: np.ndarray  # as lse: the largest |scale| sum |q k| + |mask| + |bias|
    live: np.ndarray     # (b, l) False: past the sequence's length
    batches: np.ndarray
    rows: np.ndarray

    def empty(self):
        """(b, Hq, l): rows that see no key."""
        return (self.count == 0) & self.live[:, None, :]

    def of(self, array):
        """The part of a whole (B, Hq, Lq, ...) result that is judged."""
        if array.shape[0] != self.batches.size:
            array = array[self.batches]
        return array if array.shape[2] == self.rows.size else array[:, :, self.rows]


def visible(problem, d, len_kv, b, h, rows, keys):
    """Which keys the rows (b, h, rows) see; b and h are slices and d and len_kv belong to b."""
    i, j = np.asarray(rows)[:, None], np.arange(keys.start, keys.stop)[None, :]
    d = d.reshape(-1, 1, 1, 1)
    seen = np.broadcast_to(j[None, None] < len_kv.reshape(-1, 1, 1, 1), (d.shape[0], 1, i.shape[0], j.shape[1])).copy()
    if problem.left != UNBOUNDED:
        seen &= j >= i + d - problem.left
    if problem.right != UNBOUNDED:
        seen &= j <= i + d + problem.right
    return seen


def _mask_block(problem, b, h, rows, keys):
    """The mask's entries of a block, None without a mask. Axes of size 1 stay so."""
    mask = problem.mask4()
    if mask is None:
        return None
    pick = lambda axis, index: slice(None) if mask.shape[axis] == 1 else index
    block = mask[pick(0, b), pick(1, h)][:, :, :, pick(3, keys)]
    return block if block.shape[2] == 1 else block[:, :, rows]


def _per_head(p, v):
    """p (b, heads_q, rows, keys) times v (b, heads_kv, keys, dim) -> (b, heads_q, rows, dim), without copies of v."""
    b, heads, rows, keys = p.shape
    return (p.reshape(b, v.shape[1], heads // v.shape[1], rows, keys) @ v[:, :, None]).reshape(b, heads, rows, v.shape[3])


def _weighted(p, v, seen):
    """p v, with p exactly 0 where hidden, also against a NaN or Inf in v; a visible one does what IEEE arithmetic does."""
    finite = np.isfinite(v)
    if finite.all():
        return _per_head(p, v)
    out = _per_head(p, np.where(finite, v, 0.0))
    group = p.shape[1] // v.shape[1]
    for j in np.flatnonzero(~finite.all(axis=(0, 1, 3))):
        bad = np.repeat(np.where(finite[:, :, j], 0.0, v[:, :, j]), group, axis=1)[:, :, None]  # (b, heads_q, 1, dim)
        out = out + np.where(seen[..., j, None] & (bad != 0), p[..., j, None] * bad, 0.0)
    return out


def _block(problem, b, g, rows, limits, exact):
    """Rows of the key heads g of sequences b: (out, lse, count, weight, largest), heads expanded."""
    group = problem.q.shape[1] // problem.k.shape[1]
    h = slice(g.start * group, g.stop * group)
    keys = slice(0, int(limits[1].max(initial=0)))
    q = problem.q[b, h][:, :, rows].astype(np.float64)
    k, v = problem.k[b, g, keys].astype(np.float64), problem.v[b, g, keys].astype(np.float64)
    scale = problem.exact_scale() if exact else problem.given_scale()
    with np.errstate(all="ignore"):
        kt = np.swapaxes(k, 2, 3)
        s = _per_head(q, kt) * scale
        largest = _per_head(np.abs(q), np.abs(kt, out=kt)) * abs(scale)
        if problem.softcap > 0:
            s = problem.softcap * np.tanh(s / problem.softcap)
        seen = np.broadcast_to(visible(problem, limits[0], limits[1], b, h, rows, keys), s.shape)
        mask = _mask_block(problem, b, h, rows, keys)
        if mask is not None and mask.dtype == np.bool_:
            seen = seen & mask
        elif mask is not None:
            mask = mask.astype(np.float64)
            seen = seen & (mask != -np.inf)
            s, largest = s + mask, largest + np.abs(mask)
        if problem.slopes is not None:
            distance = np.abs(np.asarray(rows)[:, None] + limits[0].reshape(-1, 1, 1, 1) - np.arange(keys.stop))
            bias = problem.slopes[h].astype(np.float64)[None, :, None, None] * distance
            s, largest = s - bias, largest + np.abs(bias)
        s = np.where(seen, s, -np.inf)
        largest = np.where(seen, largest, 0.0).max(axis=3, initial=0.0)
        return _softmax(problem, s, seen, v, h) + (largest,)


def _softmax(problem, s, seen, v, h):
    count = seen.sum(axis=3)
    top = s.max(axis=3, initial=-np.inf)
    if problem.sinks is not None:
        sink = problem.sinks[h].astype(np.float64)[None, :, None]
        top = np.maximum(top, sink)
    base = np.where(top == -np.inf, 0.0, top)
    p = np.where(seen, np.exp(s - base[..., None]), 0.0)
    total = p.sum(axis=3)
    if problem.sinks is not None:
        total = total + np.exp(sink - base)
    lse = np.where((count == 0) & (problem.sinks is None), -np.inf, np.log(total) + base)
    p = p / np.where(total == 0, 1.0, total)[..., None]
    out = _weighted(p, v, seen)
    weight = _per_head(p, np.abs(v, out=v) if np.isfinite(v).all() else np.abs(np.where(np.isfinite(v), v, 0.0)))
    return out, lse, count, weight


def attention(problem, rows=None, batches=None, exact=False):
    """The whole result, or only the given query rows and sequences of it. The scale is float32, as the API takes it, unless exact."""
    B, Hq, Hkv, Lq, Lk, _, Dv = problem.sizes
    rows = np.arange(Lq) if rows is None else np.asarray(sorted(rows), dtype=np.int64)
    batches = np.arange(B) if batches is None else np.asarray(sorted(batches), dtype=np.int64)
    shape = (batches.size, Hq, rows.size)
    result = Reference(np.zeros(shape + (Dv,)), np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape + (Dv,)), np.zeros(shape),
                       rows[None, :] < problem.lengths_q()[batches][:, None], batches, rows)
    if rows.size == 0 or batches.size == 0:
        return result
    d, len_kv = problem.diagonals(), np.minimum(problem.lengths_kv(), Lk)
    whole = max(Hq * rows.size, Hkv * sum(problem.sizes[5:])) * max(Lk, 1)  # the scores of a sequence, or its K and V
    together = max(1, SCORES // whole)  # sequences of a block; one key head at a time where even one sequence is too much
    heads = [slice(0, Hkv)] if whole <= SCORES else [slice(g, g + 1) for g in range(Hkv)]
    step = max(1, SCORES // max(1, (Hq if whole <= SCORES else Hq // Hkv) * max(Lk, 1)))
    for start in range(0, batches.size, together):
        for b, at in _runs(batches[start:start + together], start):
            for g in heads:
                h = slice(g.start * (Hq // Hkv), g.stop * (Hq // Hkv))
                for first in range(0, rows.size, step):
                    part = slice(first, first + step)
                    values = _block(problem, b, g, rows[part], (d[b], len_kv[b]), exact)
                    for array, value in zip((result.out, result.lse, result.count, result.weight, result.largest), values):
                        array[at, h, part] = value
    result.out[~np.broadcast_to(result.live[:, None, :], shape)] = 0.0
    return result


def _runs(values, start):
    """Consecutive numbers as slices, each with the slice of its places, which begin at start."""
    breaks = np.flatnonzero(np.diff(values) != 1) + 1
    for part in np.split(values, breaks):
        yield slice(int(part[0]), int(part[-1]) + 1), slice(start, start + part.size)
        start += part.size
