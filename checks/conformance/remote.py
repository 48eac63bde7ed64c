"""A context whose device has memory of its own: what a call's arguments point to is copied there before it, and back after it.

A tensor goes with all of its mapping, the gaps and what is left of its pages too, so that a stray write comes back and is seen."""
import ctypes

import numpy as np

import native
import regions

POINTERS = ("q", "k", "v", "out", "lse", "mask", "sinks", "slopes", "len_q", "len_kv", "workspace")


class Mirror:
    """The device's copies of the regions that one call's pointers lie in."""

    def __init__(self, context):
        self.context, self.copies = context, {}

    def address(self, host):
        """Where the byte at a host's address lies on the device; an address of no region as it is, for the library to refuse."""
        region = regions.holding(host)
        if region is None:
            return host
        if region.first not in self.copies:
            memory = ctypes.c_void_p()
            self.context.library.check(self.context.lib.attn_alloc(self.context.handle, region.inner, ctypes.byref(memory)))
            self.copies[region.first] = region, memory.value
            self.context.copy(memory.value, region.first, region.inner)
        return self.copies[region.first][1] + host - region.first

    def bring(self):
        """Waits, and copies everything back; what is read-only is held against what it was."""
        self.context.library.check(self.context.lib.attn_wait(self.context.handle))
        for region, memory in self.copies.values():
            if not region.sealed:
                self.context.copy(region.first, memory, region.inner)
                continue
            now = np.empty(region.inner, np.uint8)
            self.context.copy(now.ctypes.data, memory, region.inner)
            assert (now == region.whole).all(), "an input was written on the device"

    def free(self):
        for _, memory in self.copies.values():
            self.context.lib.attn_free(self.context.handle, memory)


class Context(native.Context):
    def __init__(self, library, **options):
        lib = library.lib
        lib.attn_alloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
        lib.attn_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        lib.attn_wait.argtypes, lib.attn_free.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_void_p]
        lib.attn_free.restype = None
        super().__init__(library, **options)

    def copy(self, to, origin, size):
        self.library.check(self.lib.attn_copy(self.handle, to, origin, size))

    def _there(self, mirror, args):
        there = type(args).from_buffer_copy(args)
        for name in POINTERS:
            if getattr(there, name) is not None:
                setattr(there, name, mirror.address(getattr(there, name)))
        return there

    def _call(self, call):
        mirror = Mirror(self)
        try:
            status = call(mirror)
            mirror.bring()
            return status
        finally:
            mirror.free()

    def forward(self, problem, args):
        return self._call(lambda mirror: super(Context, self).forward(problem, self._there(mirror, args)))

    def merge(self, problem, states, args):
        def call(mirror):
            there = [(mirror.address(out), mirror.address(lse)) for out, lse in states]
            return super(Context, self).merge(problem, there, self._there(mirror, args))
        return self._call(call)
