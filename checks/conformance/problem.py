"""What a case asks, in one value: sizes, visibility and logical tensors, whoever the case comes from."""
import dataclasses

import numpy as np

UNBOUNDED = -1


@dataclasses.dataclass
class Problem:
    """Tensors are logical (B, H, L, D) arrays in their storage type; how they lie in memory is tensors.py's business."""
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dtype: str                     # of out, unless dtype_out says; and of q, k and v as a rule
    scale: float | None = None     # None: 1/sqrt(dim_qk)
    softcap: float = 0.0
    mask: np.ndarray | None = None  # bool, or an additive type; broadcasts from the right to (B, Hq, Lq, Lk)
    sinks: np.ndarray | None = None
    slopes: np.ndarray | None = None
    len_q: list | None = None
    len_kv: list | None = None
    bottom_right: bool = False
    offset: int | list = 0         # added to the alignment's own; a list has one for each batch
    left: int = UNBOUNDED
    right: int = UNBOUNDED
    dtype_out: str | None = None   # None: dtype

    @property
    def sizes(self):
        """(B, Hq, Hkv, Lq, Lk, D, Dv)"""
        return (self.q.shape[0], self.q.shape[1], self.k.shape[1], self.q.shape[2], self.k.shape[2], self.q.shape[3], self.v.shape[3])

    def lengths_q(self):
        return np.array(self.len_q if self.len_q is not None else [self.q.shape[2]] * self.q.shape[0], dtype=np.int64)

    def lengths_kv(self):
        return np.array(self.len_kv if self.len_kv is not None else [self.k.shape[2]] * self.q.shape[0], dtype=np.int64)

    def diagonals(self):
        """For each batch the d of the band: row i sees i + d - left .. i + d + right."""
        base = self.lengths_kv() - self.lengths_q() if self.bottom_right else np.zeros(self.q.shape[0], np.int64)
        return base + np.asarray(self.offset, dtype=np.int64)

    def exact_scale(self):
        return float(self.scale if self.scale is not None else 1.0 / np.sqrt(max(self.q.shape[3], 1)))

    def given_scale(self):
        """The scale as the API takes it: a float32."""
        return float(np.float32(self.exact_scale()))

    def mask4(self):
        """The mask with four axes, each of its own size or 1."""
        return None if self.mask is None else self.mask.reshape((1,) * (4 - self.mask.ndim) + self.mask.shape)

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)

    def keys(self, first, last):
        """The same problem over keys first .. last - 1 alone; row i keeps its place relative to them."""
        mask = self.mask4()
        if mask is not None and mask.shape[3] != 1:
            mask = mask[..., first:last]
        return self.replace(k=self.k[:, :, first:last], v=self.v[:, :, first:last], mask=mask, bottom_right=False,
                            offset=[int(d) - first for d in self.diagonals()],
                            len_kv=[int(n) for n in np.clip(self.lengths_kv() - first, 0, last - first)])

    def rows(self, first, last):
        """The same problem for query rows first .. last - 1 alone, each seeing what it saw."""
        mask = self.mask4()
        if mask is not None and mask.shape[2] != 1:
            mask = mask[:, :, first:last]
        return self.replace(q=self.q[:, :, first:last], mask=mask, bottom_right=False, offset=[int(d) + first for d in self.diagonals()],
                            len_q=None if self.len_q is None else [int(n) for n in np.clip(self.lengths_q() - first, 0, last - first)])

    def batches(self, first, last):
        """Sequences first .. last - 1 alone."""
        mask = self.mask4()
        if mask is not None and mask.shape[0] != 1:
            mask = mask[first:last]
        cut = lambda values: values[first:last] if isinstance(values, list) else values
        return self.replace(q=self.q[first:last], k=self.k[first:last], v=self.v[first:last], mask=mask, len_q=cut(self.len_q),
                            len_kv=cut(self.len_kv), offset=cut(self.offset))
