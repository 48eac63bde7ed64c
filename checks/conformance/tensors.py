"""Lays logical tensors out in guarded memory as a case's `layout` says: orders, pads, capacities, strides, offsets, shared buffers."""
import dataclasses

import numpy as np

import fills
from regions import PATTERN, Region


class NotExpressible(Exception):
    """The C API has no words for this layout; the case is skipped by name."""


@dataclasses.dataclass
class Tensor:
    region: Region
    offset: int    # element of the region that is index 0
    strides: dict  # of each axis, in elements, as the library is told
    shape: tuple
    dtype: object
    view: np.ndarray  # logical

    @property
    def address(self):
        return self.region.address + self.offset * np.dtype(self.dtype).itemsize

    def written(self):
        """True if a logical element is no longer PATTERN."""
        return bool(self.view.size) and bool((np.ascontiguousarray(self.view).view(np.uint8) != PATTERN).any())

    def stray(self):
        """True if a byte beside the logical elements is no longer PATTERN. Nothing to see in a sparse mapping."""
        if self.region.sparse:
            return False
        start, item = self.region.address - self.region.first, np.dtype(self.dtype).itemsize
        if self.view.size * item == self.region.size:  # no gaps: what is left are the ends of its pages
            return bool((self.region.whole[:start] != PATTERN).any() or (self.region.whole[start + self.region.size:] != PATTERN).any())
        copy = self.region.whole.copy()
        if self.view.size:
            strides = [0 if n == 1 else self.strides[a] * item for a, n in zip(self.strides, self.shape)]
            clean = np.ndarray(self.shape, f"V{item}", copy[start:start + self.region.size], self.offset * item, strides)
            clean[...] = np.frombuffer(bytes([PATTERN]) * item, f"V{item}")[0]
        return bool((copy != PATTERN).any())


def _tokens(order):
    words = order.split() if " " in order else list(order)
    rename = {"Lq": "L", "Lk": "K", "S": "L"}
    return [int(word) if word.isdigit() else rename.get(word, word) for word in words]


def _list(value, default):
    if value is True:
        return [default]
    return [value] if isinstance(value, str) else list(value or [])


class Layout:
    """Where each index of each axis lies. axes: name -> size, in logical order; an axis of size 1 in a mask broadcasts."""

    def __init__(self, axes, keys, default, broadcast=False):
        order = keys.get("order", default)
        swap = {"transposed": default[:-2] + default[-1] + default[-2]}
        self.tokens = [token for token in _tokens(swap.get(order, order))]
        missing = set(axes) - {token for token in self.tokens if isinstance(token, str)}
        if missing:
            raise fills.UnknownRule(f"layout order '{order}'")
        self.axes, self.strides, self.slot_stride, self.extent = axes, {}, 0, {}
        self._dense(keys, broadcast)
        self._override(keys)
        if "K" not in axes and "D" in axes and self.strides["D"] != 1 and axes["D"] > 1:
            raise NotExpressible("a stride on the last axis")
        self.slot = int(keys.get("slot", 0))
        self._span(keys)

    def _dense(self, keys, broadcast):
        step = int(keys.get("d_stride", 1))
        for place, token in enumerate(reversed(self.tokens)):
            size = token if isinstance(token, int) else self.axes[token]
            if isinstance(token, int):
                self.slot_stride = step
            else:
                self.strides[token] = 0 if broadcast and size == 1 else step
                size = max(size, int(keys.get({"L": "row_capacity", "H": "head_capacity"}.get(token), size)))
                self.extent[token] = size
            step *= max(size, 1) + (int(keys.get("row_pad", 0)) if place == 0 else 0)
        self.slots = next((token for token in self.tokens if isinstance(token, int)), 1)

    def _override(self, keys):
        names = {"row_stride": "L", "batch_stride": "B", "head_stride": "H", "key_stride": "K"}
        for name, axis in names.items():
            if name in keys and not (axis == "L" and self.axes.get("L") == 1 and self.strides.get("L") == 0):
                self.strides[axis] = int(keys[name])
        for axis in _list(keys.get("stride0"), "H"):
            self.strides[axis] = 0
        ones = [axis for axis in ("B", "H", "L", "K") if self.axes.get(axis) == 1]
        self.told = {}
        for axis, stride in zip(ones, keys.get("size1_strides", [])):
            self.told[axis] = int(stride)
        self.reversed = [{"Lq": "L", "Lk": "K"}.get(axis, axis) for axis in _list(keys.get("neg"), "L")]

    def _span(self, keys):
        empty = any(size == 0 for size in self.axes.values())
        reach = {axis: (self.extent[axis] - 1) * stride for axis, stride in self.strides.items()}
        self.span = 0 if empty else sum(reach.values()) + (self.slots - 1) * self.slot_stride + 1
        self.lead = int(keys.get("offset", 0))
        self.base = self.lead + self.slot * self.slot_stride
        for axis in self.reversed:
            self.base += (self.axes[axis] - 1) * self.strides[axis]
            self.strides[axis] = -self.strides[axis]

    def given(self):
        """The strides that the library is told, in logical axis order."""
        return {axis: self.told.get(axis, self.strides[axis]) for axis in self.axes}


def make(axes, dtype, keys, default, at_end, broadcast=False, region=None):
    """An unfilled tensor, in memory of its own unless a region is given."""
    layout = Layout(axes, keys, default, broadcast)
    if region is None:
        # An offset means an alignment, which only a start on a page can promise.
        region = Region((layout.lead + layout.span) * np.dtype(dtype).itemsize, at_end and not layout.lead)
    shape = tuple(axes.values())
    strides = [layout.strides[axis] for axis in axes]
    view = region.array(shape, dtype, layout.base, strides)
    return Tensor(region, layout.base, layout.given(), shape, dtype, view)


def fill(tensor, data):
    """Writes data; along a stride-0 axis index 0 stands for all."""
    first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.strides.values())
    tensor.view[first] = data[first]


def _gap_fill(region, dtype, keys, at_end):
    """What lies between the elements: NaN, or as large a finite value as would show; a case may name its own."""
    if region.sparse or region.size == 0:
        return
    values = region.array((region.size // np.dtype(dtype).itemsize,), dtype)
    if str(keys.get("pad_value", "nan")) != "nan":
        values[...] = fills.rounded(float(keys["pad_value"]), "f32").astype(dtype)
    elif np.dtype(dtype).itemsize == 1:
        values[...] = PATTERN if at_end else 0
    elif not at_end:
        values[...] = fills.rounded(3e4, "f32").astype(dtype)


def _interleaved(keys):
    return any(isinstance(token, int) for token in _tokens(keys.get("order", "BHLD")))


def place_inputs(problem, layout, at_end):
    """q, k, v and mask of the problem in memory, read-only. layout: the case's keys for each."""
    placed, shared = {}, {}
    for name in ("q", "k", "v"):
        data, keys = getattr(problem, name), layout.get(name, {})
        axes = dict(zip("BHLD", data.shape))
        if "view_of" in keys:
            whole = placed[keys["view_of"]]
            view = whole.view[..., :data.shape[3]]
            placed[name] = Tensor(whole.region, whole.offset, whole.strides, data.shape, whole.dtype, view)
            continue
        group = keys.get("order") if _interleaved(keys) else None
        if group is not None:  # one buffer for all: each slot as large as the largest
            members = [getattr(problem, n).shape for n in ("q", "k", "v") if layout.get(n, {}).get("order") == group]
            keys = {"head_capacity": max(m[1] for m in members), "row_capacity": max(m[2] for m in members), **keys}
        placed[name] = make(axes, data.dtype, keys, "BHLD", at_end, region=shared.get(group))
        if group is None or group not in shared:
            _gap_fill(placed[name].region, data.dtype, keys, at_end)
        if group is not None:
            shared[group] = placed[name].region
    for name in ("q", "k", "v"):
        if "view_of" not in layout.get(name, {}):
            fill(placed[name], getattr(problem, name))
    if problem.mask is not None:
        placed["mask"] = _place_mask(problem.mask4(), layout.get("mask", {}), at_end)
    if not any("alias" in keys for keys in layout.values() if isinstance(keys, dict)):
        for tensor in placed.values():
            tensor.region.seal()
    return placed


def _place_mask(mask, keys, at_end):
    data = mask
    if mask.dtype == np.bool_:  # true is any byte that is not 0
        data = np.where(mask, np.uint8(1 if at_end else 0xA4), np.uint8(0))
    tensor = make(dict(zip("BHLK", mask.shape)), data.dtype, keys, "BHLK", at_end, broadcast=True)
    _gap_fill(tensor.region, data.dtype, keys, at_end)
    fill(tensor, data)
    return tensor


def place_outputs(problem, dtype_out, layout, placed, at_end):
    """out and lse, every byte PATTERN: a NaN where nothing is written, so that a case's own `prefill` adds nothing."""
    B, Hq, _, Lq, _, _, Dv = problem.sizes
    axes, keys = {"B": B, "H": Hq, "L": Lq, "D": Dv}, layout.get("out", {})
    region = placed[keys["alias"]].region if "alias" in keys else None
    out = make(axes, fills.DTYPES[dtype_out], keys, "BHLD", at_end, region=region)
    lse = make({"B": B, "H": Hq, "L": Lq}, np.float32, layout.get("lse", {}), "BHL", at_end)
    return out, lse
