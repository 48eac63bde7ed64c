"""include/attn/attn.h for ctypes: the structs, the constants, the library's functions, and one class for a context.

checks/conformance/test_header.py holds it against the header. Nothing is loaded before it is needed."""
from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import struct
import sys
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint32, c_void_p

NONE, F32, F16, BF16, BOOL = range(5)
BHLD, BLHD = range(2)
TOP_LEFT, BOTTOM_RIGHT = range(2)
CPU, REFERENCE, CUDA = range(3)
EXACT, FAST = range(2)
UNBOUNDED = -1
OK, NULL_Q, NULL_MASK, MISALIGNED, OUT_OF_MEMORY, PLUGIN, DRIVER = 0, 28, 32, 36, 52, 56, 57
NULL_ARRAYS = range(NULL_Q, NULL_MASK + 1)  # q, k, v, out and mask


class Strides(Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("row", c_int64)]


class MaskStrides(Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("row", c_int64), ("key", c_int64)]


class Problem(Structure):
    _fields_ = [("stamp", c_uint32), ("type_q", c_int), ("type_k", c_int), ("type_v", c_int), ("type_out", c_int),
                ("batch", c_int64), ("heads_q", c_int64), ("heads_kv", c_int64), ("len_q", c_int64), ("len_kv", c_int64),
                ("dim_qk", c_int64), ("dim_v", c_int64),
                ("q", Strides), ("k", Strides), ("v", Strides), ("out", Strides), ("lse", Strides),
                ("scale", c_float), ("softcap", c_float), ("align", c_int), ("type_mask", c_int),
                ("offset", c_int64), ("left", c_int64), ("right", c_int64), ("mask", MaskStrides)]


class Args(Structure):
    _fields_ = [("stamp", c_uint32), ("q", c_void_p), ("k", c_void_p), ("v", c_void_p), ("out", c_void_p), ("lse", c_void_p),
                ("mask", c_void_p), ("sinks", c_void_p), ("slopes", c_void_p), ("len_q", c_void_p), ("len_kv", c_void_p),
                ("workspace", c_void_p), ("workspace_size", c_size_t), ("stream", c_void_p)]


class Options(Structure):
    _fields_ = [("stamp", c_uint32), ("device", c_int), ("threads", c_int), ("passes", c_int), ("chunk", c_int64), ("isa", c_char_p),
                ("executor", c_void_p), ("precision", c_int), ("index", c_int)]


class Executor(Structure):
    _fields_ = [("run", c_void_p), ("host", c_void_p), ("threads", c_int)]


class State(Structure):
    _fields_ = [("out", c_void_p), ("lse", c_void_p)]


class Explanation(Structure):
    _fields_ = [("stamp", c_uint32), ("passes", c_int), ("threads", c_int), ("chunk", c_int64), ("chunks", c_int64), ("rows", c_int64),
                ("jobs", c_int64), ("workspace", c_size_t), ("bytes", c_double), ("operations", c_double), ("device", c_char_p),
                ("isa", c_char_p), ("kernel", c_char_p), ("reason", c_char * 256), ("weight_error", c_double)]


class Description(Structure):
    _fields_ = [("stamp", c_uint32), ("threads", c_int), ("device", c_char_p), ("isa", c_char_p), ("isas", c_char_p), ("pool", c_char_p)]


C_NAMES = {Strides: "attn_strides", MaskStrides: "attn_mask_strides", Problem: "attn_problem", Args: "attn_args", Options: "attn_options",
           Executor: "attn_executor", State: "attn_state", Explanation: "attn_explanation", Description: "attn_description"}
C_CONSTANTS = {"ATTN_NONE": NONE, "ATTN_F32": F32, "ATTN_F16": F16, "ATTN_BF16": BF16, "ATTN_BOOL": BOOL, "ATTN_BHLD": BHLD,
               "ATTN_BLHD": BLHD, "ATTN_TOP_LEFT": TOP_LEFT, "ATTN_BOTTOM_RIGHT": BOTTOM_RIGHT, "ATTN_CPU": CPU,
               "ATTN_REFERENCE": REFERENCE, "ATTN_CUDA": CUDA, "ATTN_EXACT": EXACT, "ATTN_FAST": FAST,
               "ATTN_UNBOUNDED": UNBOUNDED, "ATTN_OK": OK,
               "ATTN_ERROR_NULL_Q": NULL_Q,
               "ATTN_ERROR_NULL_MASK": NULL_MASK, "ATTN_ERROR_MISALIGNED": MISALIGNED, "ATTN_ERROR_OUT_OF_MEMORY": OUT_OF_MEMORY,
               "ATTN_ERROR_PLUGIN": PLUGIN, "ATTN_ERROR_DRIVER": DRIVER}


def stamp(kind):
    """What marks a struct as set up: attn.h's ATTN_STAMP."""
    return 0x41540000 + ctypes.sizeof(kind)


def args_packer(fields, size):
    """A function of Args' fields from q on, in bytes: filling in the struct itself takes five times as long. The stamp says where they
    end."""
    layout = struct.Struct("@I" + fields)
    assert layout.size == size
    return functools.partial(layout.pack, stamp(Args) - ctypes.sizeof(Args) + size)


pack_args = args_packer("PPPPPPPPPPPN", Args.stream.offset)  # to workspace_size
pack_args_and_stream = args_packer("PPPPPPPPPPPNP", ctypes.sizeof(Args))


def stamped(kind, **fields):
    return kind(stamp=stamp(kind), **fields)


class StatusError(ValueError):
    """The library refused a call; `status` is its code and the text names the argument and the rule."""

    def __init__(self, text, status):
        super().__init__(text)
        self.status = status

    def __reduce__(self):
        """With both arguments: a process pool whose worker raises it waits for ever where it cannot be made again."""
        return type(self), (str(self), self.status)


class Library:
    def __init__(self, path):
        self.path = str(path)
        lib = self.lib = ctypes.CDLL(self.path)
        # Structs are handed over as bare addresses: what takes microseconds to convert would be most of a small call.
        signatures = {
            "attn_open": [POINTER(c_void_p), POINTER(Options)], "attn_workspace": [c_void_p, c_void_p, POINTER(c_size_t)],
            "attn_reserve": [c_void_p, c_void_p], "attn_forward": [c_void_p, c_void_p, c_void_p],
            "attn_merge": [c_void_p, c_void_p, c_void_p, c_int64, c_void_p],
            "attn_explain": [c_void_p, c_void_p, POINTER(Explanation)], "attn_describe": [c_void_p, POINTER(Description)],
            "attn_problem_dense": [POINTER(Problem), c_int],
            "attn_problem_setup": [POINTER(Problem), c_uint32, c_int, c_int] + [c_int64] * 6,
        }
        for name, arguments in signatures.items():
            getattr(lib, name).argtypes, getattr(lib, name).restype = arguments, c_int
        lib.attn_close.argtypes, lib.attn_close.restype = [c_void_p], None
        lib.attn_status_text.argtypes, lib.attn_status_text.restype = [c_int], c_char_p
        lib.attn_version.restype = lib.attn_failure.restype = c_char_p

    def text(self, status):
        return self.lib.attn_status_text(status).decode()

    def version(self):
        return self.lib.attn_version().decode()

    def check(self, status, about=lambda: ""):
        """`about` is called for what the text is to say further, only where there is an error."""
        if status == OUT_OF_MEMORY:
            raise MemoryError(self.text(status))
        if status != OK:
            why = ": " + self.lib.attn_failure().decode(errors="replace") if status in (PLUGIN, DRIVER) else ""
            raise StatusError(self.text(status) + why + about(), status)

    def open(self, **options):
        return Context(self, **options)


class Context:
    """An open attn_context; usable in a with statement."""

    def __init__(self, library, device=CPU, threads=0, passes=0, chunk=0, isa=None, precision=EXACT, gomp_parallel=None,
                 index=0):
        """gomp_parallel: the address of that function of OpenMP, whose threads are to be used instead of the library's."""
        self.library, self.lib = library, library.lib
        handle = c_void_p()
        options = stamped(Options, device=device, threads=threads, passes=passes, chunk=chunk, isa=isa.encode() if isa else None,
                          precision=precision, index=index)
        if gomp_parallel is not None:
            executor = Executor(run=ctypes.cast(self.lib.attn_run_openmp, c_void_p), host=gomp_parallel, threads=threads)
            options.executor = ctypes.addressof(executor)
        library.check(self.lib.attn_open(byref(handle), byref(options)))
        self.handle = handle.value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.lib.attn_close(self.handle)
        self.handle = None

    def problem(self, layout, kind, batch, heads_q, heads_kv, len_q, len_kv, dim):
        problem = Problem()
        self.library.check(self.lib.attn_problem_setup(byref(problem), stamp(Problem), layout, kind, batch, heads_q, heads_kv, len_q,
                                                       len_kv, dim))
        return problem

    def dense(self, problem, layout):
        self.library.check(self.lib.attn_problem_dense(byref(problem), layout))

    def workspace(self, problem, about=lambda: ""):
        size = c_size_t()
        self.library.check(self.lib.attn_workspace(self.handle, byref(problem), byref(size)), about)
        return size.value

    def accepts(self, problem):
        """False for a problem that a call will refuse."""
        return self.lib.attn_workspace(self.handle, byref(problem), byref(c_size_t())) == OK

    def forward(self, problem, args):
        """The status, unchecked."""
        return self.lib.attn_forward(self.handle, byref(problem), byref(args))

    def merge(self, problem, states, args):
        """The status, unchecked."""
        array = (State * max(len(states), 1))(*[State(out, lse) for out, lse in states])
        return self.lib.attn_merge(self.handle, byref(problem), array, len(states), byref(args))

    def explain(self, problem, about=lambda: ""):
        explanation = stamped(Explanation)
        self.library.check(self.lib.attn_explain(self.handle, byref(problem), byref(explanation)), about)
        return explanation

    def describe(self):
        description = stamped(Description)
        self.library.check(self.lib.attn_describe(self.handle, byref(description)))
        return description


def candidates():
    """Where the library may be, best first."""
    if os.environ.get("LIBATTN_LIBRARY"):
        return [os.environ["LIBATTN_LIBRARY"]]
    name = {"darwin": "libattn.dylib", "win32": "libattn.dll"}.get(sys.platform, "libattn.so")
    beside = pathlib.Path(__file__).with_name(name)
    return [str(beside), *({"darwin": ["libattn.0.dylib"], "win32": [name]}.get(sys.platform, ["libattn.so.0"]))]


@functools.lru_cache(maxsize=None)
def library():
    """The library in use: the file that LIBATTN_LIBRARY names, else the one in this package, else the system's."""
    tried = []
    for path in candidates():
        try:
            return Library(path)
        except (OSError, AttributeError) as why:  # AttributeError: it is another library
            tried.append(f"{path}: {why}")
    raise ImportError("libattn's shared library could not be loaded; tried " + "; ".join(tried))
