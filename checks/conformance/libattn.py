"""include/attn/attn.h for ctypes: the structs, the constants and one class for a context. test_header.py compares them with the header."""
import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint32, c_void_p

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "attn" / "attn.h"

NONE, F32, F16, BF16, BOOL = range(5)
BHLD, BLHD = range(2)
TOP_LEFT, BOTTOM_RIGHT = range(2)
CPU, REFERENCE = range(2)
EXACT, FAST = range(2)
UNBOUNDED = -1
OK = 0


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
                ("workspace", c_void_p), ("workspace_size", c_size_t)]


class Options(Structure):
    _fields_ = [("stamp", c_uint32), ("device", c_int), ("threads", c_int), ("passes", c_int), ("chunk", c_int64), ("isa", c_char_p),
                ("executor", c_void_p), ("precision", c_int)]


class State(Structure):
    _fields_ = [("out", c_void_p), ("lse", c_void_p)]


class Explanation(Structure):
    _fields_ = [("stamp", c_uint32), ("passes", c_int), ("threads", c_int), ("chunk", c_int64), ("chunks", c_int64), ("rows", c_int64),
                ("jobs", c_int64), ("workspace", c_size_t), ("bytes", c_double), ("operations", c_double), ("device", c_char_p),
                ("isa", c_char_p), ("kernel", c_char_p), ("reason", c_char * 256), ("weight_error", c_double)]


class Description(Structure):
    _fields_ = [("stamp", c_uint32), ("threads", c_int), ("device", c_char_p), ("isa", c_char_p), ("isas", c_char_p), ("pool", c_char_p)]


C_NAMES = {Strides: "attn_strides", MaskStrides: "attn_mask_strides", Problem: "attn_problem", Args: "attn_args", Options: "attn_options",
           State: "attn_state", Explanation: "attn_explanation", Description: "attn_description"}
C_CONSTANTS = {"ATTN_NONE": NONE, "ATTN_F32": F32, "ATTN_F16": F16, "ATTN_BF16": BF16, "ATTN_BOOL": BOOL, "ATTN_BHLD": BHLD,
               "ATTN_BLHD": BLHD, "ATTN_TOP_LEFT": TOP_LEFT, "ATTN_BOTTOM_RIGHT": BOTTOM_RIGHT, "ATTN_CPU": CPU,
               "ATTN_REFERENCE": REFERENCE, "ATTN_EXACT": EXACT, "ATTN_FAST": FAST, "ATTN_UNBOUNDED": UNBOUNDED, "ATTN_OK": OK}


def stamped(struct, **fields):
    return struct(stamp=0x41540000 + ctypes.sizeof(struct), **fields)


class StatusError(Exception):
    """A call that was expected to succeed returned an error."""

    def __init__(self, library, call, status):
        super().__init__(f"{call}: status {status}: {library.text(status)}")
        self.status = status


class Library:
    def __init__(self, path):
        lib = self.lib = ctypes.CDLL(str(path))
        context = c_void_p
        signatures = {
            "attn_open": [POINTER(context), POINTER(Options)], "attn_workspace": [context, POINTER(Problem), POINTER(c_size_t)],
            "attn_reserve": [context, POINTER(Problem)], "attn_forward": [context, POINTER(Problem), POINTER(Args)],
            "attn_merge": [context, POINTER(Problem), POINTER(State), c_int64, POINTER(Args)],
            "attn_explain": [context, POINTER(Problem), POINTER(Explanation)], "attn_describe": [context, POINTER(Description)],
            "attn_problem_setup": [POINTER(Problem), c_uint32, c_int] + [c_int] + [c_int64] * 6,
        }
        for name, arguments in signatures.items():
            getattr(lib, name).argtypes, getattr(lib, name).restype = arguments, c_int
        lib.attn_close.argtypes, lib.attn_close.restype = [context], None
        lib.attn_status_text.argtypes, lib.attn_status_text.restype = [c_int], c_char_p
        lib.attn_version.restype = c_char_p

    def text(self, status):
        return self.lib.attn_status_text(status).decode()

    def version(self):
        return self.lib.attn_version().decode()

    def open(self, **options):
        return Context(self, **options)


class Context:
    """An open attn_context; usable in a with statement."""

    def __init__(self, library, device=CPU, threads=0, passes=0, chunk=0, isa=None):
        self.library, self.lib, self.handle = library, library.lib, c_void_p()
        options = stamped(Options, device=device, threads=threads, passes=passes, chunk=chunk, isa=isa.encode() if isa else None)
        self.check("attn_open", self.lib.attn_open(byref(self.handle), byref(options)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.handle:
            self.lib.attn_close(self.handle)
            self.handle = c_void_p()

    def check(self, call, status):
        if status != OK:
            raise StatusError(self.library, call, status)

    def problem(self, layout, kind, batch, heads_q, heads_kv, len_q, len_kv, dim):
        problem = Problem()
        stamp = stamped(Problem).stamp
        status = self.lib.attn_problem_setup(byref(problem), stamp, layout, kind, batch, heads_q, heads_kv, len_q, len_kv, dim)
        self.check("attn_problem_setup", status)
        return problem

    def workspace(self, problem):
        size = c_size_t()
        self.check("attn_workspace", self.lib.attn_workspace(self.handle, byref(problem), byref(size)))
        return size.value

    def accepts(self, problem):
        """False for a problem that a call will refuse."""
        return self.lib.attn_workspace(self.handle, byref(problem), byref(c_size_t())) == OK

    def forward(self, problem, args):
        """The status, unchecked: some cases want an error."""
        return self.lib.attn_forward(self.handle, byref(problem), byref(args))

    def merge(self, problem, states, args):
        array = (State * max(len(states), 1))(*[State(out, lse) for out, lse in states])
        return self.lib.attn_merge(self.handle, byref(problem), array, len(states), byref(args))

    def explain(self, problem):
        explanation = stamped(Explanation)
        self.check("attn_explain", self.lib.attn_explain(self.handle, byref(problem), byref(explanation)))
        return explanation

    def describe(self):
        description = stamped(Description)
        self.check("attn_describe", self.lib.attn_describe(self.handle, byref(description)))
        return description


def path():
    """The library under test: ATTN_LIB, or build/libattn.so."""
    return pathlib.Path(os.environ.get("ATTN_LIB", ROOT / "build" / "libattn.so"))
