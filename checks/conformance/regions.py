"""Memory between guard pages: a read or write outside of it faults, whichever side it is flush against."""
import ctypes
import mmap
import weakref

import numpy as np

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_FAILED = ctypes.c_void_p(-1).value
_MAP_NORESERVE = 0x4000  # Linux
PATTERN = 0xFF           # every byte so: a NaN in each float type, true in a bool
SPARSE = 1 << 30         # bytes from which on nothing is filled or compared as a whole: the mapping commits what is touched


_live = weakref.WeakSet()


def holding(address):
    """The region whose mapping holds an address, its end included; None for an address of none."""
    return next((region for region in _live if region.mapping is not None and 0 <= address - region.first <= region.inner), None)


class Region:
    """size bytes that end at an unmapped page (at_end) or begin right after one; all bytes PATTERN, unless sparse."""

    def __init__(self, size, at_end=True):
        self.size, self.at_end, self.sealed = size, at_end, False
        self.sparse = size >= SPARSE
        self.inner = max(1, -(-size // PAGE)) * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.mapping = _libc.mmap(None, self.inner + 2 * PAGE, _PROT_NONE, flags, -1, 0)
        if self.mapping in (None, _MAP_FAILED):
            self.mapping = None
            raise MemoryError(f"mmap of {size} bytes")
        self._protect(_PROT_READ | _PROT_WRITE)
        self.first = self.mapping + PAGE  # of what is mapped; the slack beside the data is PATTERN too
        self.address = self.first + (self.inner - size if at_end else 0)
        self.whole = np.frombuffer((ctypes.c_uint8 * self.inner).from_address(self.first), dtype=np.uint8)
        self.bytes = self.whole[self.address - self.first:self.address - self.first + size]
        if not self.sparse:
            self.whole[...] = PATTERN
        _live.add(self)

    def _protect(self, protection):
        if _libc.mprotect(self.mapping + PAGE, self.inner, protection) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def seal(self):
        """Read-only from now on: a write faults."""
        self.sealed = True
        self._protect(_PROT_READ)

    def array(self, shape, dtype, offset=0, strides=None):
        """A view of the data; offset in elements, strides in elements."""
        item = np.dtype(dtype).itemsize
        if 0 in shape:
            return np.empty(shape, dtype)
        byte_strides = None if strides is None else [0 if n == 1 else s * item for n, s in zip(shape, strides)]
        return np.ndarray(shape, dtype, self.bytes, offset * item, byte_strides)

    def close(self):
        if self.mapping is not None:
            self.whole = self.bytes = None
            _libc.munmap(self.mapping, self.inner + 2 * PAGE)
            self.mapping = None

    def __del__(self):
        self.close()


def vector(values, dtype, at_end=True):
    """A read-only one-dimensional array between guard pages, None for None."""
    if values is None:
        return None
    values = np.asarray(values, dtype=dtype)
    region = Region(values.nbytes, at_end)
    region.array(values.shape, dtype)[...] = values
    region.seal()
    return region
