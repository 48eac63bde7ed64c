"""stand_in.py NAME: one of the checks below, of arrays on a GPU where there is none: the plugin is checks/plugins' stand-in (ATTN_PLUGINS
names its folder), whose memory is the host's and which keeps what a call was given; the arrays are of a library made up here, which says
that its memory is a GPU's. A plugin stays in its process for good, so each check has one of its own (test_cuda.py)."""
import ctypes
import os
import pathlib
import sys

import numpy as np

import libattn
import libattn._native as native
from libattn import _arrays


class Counts(ctypes.Structure):
    """checks/plugins/stand_in.h"""

    _fields_ = [("fails", ctypes.c_int), ("index", ctypes.c_int), ("closed", ctypes.c_int), ("forwards", ctypes.c_int),
                ("held", ctypes.c_int), ("states", ctypes.c_int64), ("args", native.Args), ("problem", native.Problem)]


class Array:
    """Host memory that says it is a GPU's; speaks DLPack and so much of the array API as results and small vectors take."""

    def __init__(self, x, index=0, managed=False):
        self.x, self.shape, self.dtype, self.device, self.managed, self.asked = x, x.shape, x.dtype, index, managed, []

    def __dlpack_device__(self):
        return 13 if self.managed else 2, self.device

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        return self.x.__dlpack__()

    def __array_namespace__(self):
        return Library

    def __setitem__(self, where, value):
        self.x[where] = value

    @property
    def address(self):
        return self.x.ctypes.data


class Library:
    float32, uint8 = np.float32, np.uint8
    made = []

    @classmethod
    def empty(cls, shape, dtype, device):
        cls.made.append(Array(np.empty(shape, dtype), device))
        return cls.made[-1]

    @classmethod
    def asarray(cls, x, device):
        cls.made.append(Array(np.array(x), device))
        return cls.made[-1]


counts = None


def on_gpu(*shape, dtype=np.float32, **options):
    return Array(np.ones(shape, dtype), **options)


def refused(error, text, function, *args, **options):
    try:
        function(*args, **options)
    except error as why:
        assert text in str(why), why
        return
    raise AssertionError(f"not refused: {text}")


def check_call():
    """Addresses, shapes and strides as they are; a workspace and results of the arrays' own library; the default stream."""
    q, k = on_gpu(1, 4, 3, 8, index=1), on_gpu(1, 2, 50, 8, index=1, managed=True)
    v = Array(np.ones((1, 2, 60, 16), np.float32)[:, :, :50, 4:12], 1)
    mask = on_gpu(3, 50, dtype=bool, index=1)
    result, lse = libattn.attention(q, k, v, mask=mask, return_lse=True)
    args, problem = counts.args, counts.problem
    assert counts.forwards == 1 and counts.index == 1
    assert (args.q, args.k, args.v, args.mask) == (q.address, k.address, v.address, mask.address)
    assert (args.out, args.lse) == (result.address, lse.address)
    assert (result.shape, result.dtype, lse.shape, lse.dtype) == ((1, 4, 3, 8), np.float32, (1, 4, 3), np.float32)
    assert (problem.heads_q, problem.heads_kv, problem.len_q, problem.len_kv, problem.v.row) == (4, 2, 3, 50, 16)
    assert args.stream is None and all(x.asked[-1] == _arrays.DEFAULT_STREAM for x in (q, k, v, mask, result, lse))
    scratch = Library.made[-1]  # the stand-in asks for a byte a key
    assert args.workspace % 64 == 0 and args.workspace_size == 50
    assert scratch.address <= args.workspace and args.workspace + 50 <= scratch.address + scratch.x.nbytes
    libattn.attention(q, k, v, device="cuda")
    libattn.attention(q, k, v, device="cuda:1")
    half = on_gpu(1, 4, 3, 8, dtype=np.float16, index=1)
    assert libattn.attention(half, half, half).dtype == np.float16
    assert libattn.explain(q, k, v).kernel == "stand-in" and counts.forwards == 4


def check_small():
    """Small vectors are used where they lie on the GPU, and copied to it from anywhere else."""
    q, k = on_gpu(2, 4, 3, 8), on_gpu(2, 4, 9, 8)
    there = {"sinks": on_gpu(4), "alibi_slopes": on_gpu(4), "len_q": Array(np.array([1, 9], np.int32)), "len_kv": on_gpu(2, dtype=np.int32)}
    result, lse = libattn.attention(q, k, k, return_lse=True, **there)
    args = counts.args
    assert [args.sinks, args.slopes, args.len_q, args.len_kv] == [x.address for x in there.values()]
    assert (result.x == 0).all() and (lse.x == -np.inf).all()  # rows past len_q, which a device would have left
    host = {"sinks": [1, 2, 3, 4], "alibi_slopes": np.arange(4), "len_q": 3, "len_kv": np.array([2, 9], np.int64)}
    libattn.attention(q, k, k, **host)
    args = counts.args
    read = lambda address, kind, n: list((kind * n).from_address(address))
    assert read(args.sinks, ctypes.c_float, 4) == [1, 2, 3, 4] and read(args.slopes, ctypes.c_float, 4) == [0, 1, 2, 3]
    assert read(args.len_q, ctypes.c_int32, 2) == [3, 3] and read(args.len_kv, ctypes.c_int32, 2) == [2, 9]
    for name, x, error, text in [
            ("sinks", on_gpu(3), ValueError, "its shape is 3 but must be 4"), ("sinks", on_gpu(4, dtype=np.float64), TypeError, "float32"),
            ("sinks", Array(np.ones(8, np.float32)[::2]), TypeError, "contiguous"),
            ("len_kv", on_gpu(2, dtype=np.int64), TypeError, "int32"),
            ("len_kv", on_gpu(2, dtype=np.int32, index=1), ValueError, "on the GPU cuda:1, but q on the GPU cuda:0"),
            ("len_kv", [1, 10], ValueError, "between 0 and 9")]:
        refused(error, f"{name}: ", libattn.attention, q, k, k, **{name: x})
        refused(error, text, libattn.attention, q, k, k, **{name: x})


def check_places():
    """All arrays lie on one GPU, and a device that is named is that one."""
    q, other, host = on_gpu(1, 2, 3, 8), on_gpu(1, 2, 3, 8, index=1), np.ones((1, 2, 3, 8), np.float32)
    attend, merge = libattn.attention, libattn.merge
    refused(ValueError, "k: lies on the GPU cuda:1, but q on the GPU cuda:0", attend, q, other, q)
    refused(ValueError, "v: lies in the CPU's memory, but q on the GPU cuda:0", attend, q, q, host)
    refused(ValueError, "q", attend, host, q, q)
    refused(ValueError, "mask: lies in the CPU's memory", attend, q, q, q, mask=np.ones((3, 3), bool))
    refused(ValueError, "out: lies in the CPU's memory", attend, q, q, q, out=host)
    for device in ("cpu", "reference", "cuda:1"):
        refused(ValueError, f"device: is '{device}', but q lies on the GPU cuda:0", attend, q, q, q, device=device)
    refused(ValueError, "states[1] out: lies in the CPU's memory", merge, [(q, on_gpu(1, 2, 3)), (host, host[..., 0])])
    refused(ValueError, "device: is 'cpu', but states[0] out lies on the GPU", merge, [(q, on_gpu(1, 2, 3))], device="cpu")
    refused(ValueError, "has no unit of this number", attend, *[on_gpu(1, 2, 3, 8, index=2)] * 3)
    assert counts.forwards == 0


def check_merge():
    states = [(on_gpu(1, 2, 3, 8, index=1), on_gpu(1, 2, 3, index=1)) for _ in range(3)]
    out, lse = libattn.merge(states)
    args = counts.args
    assert counts.states == 3 and counts.index == 1 and (args.out, args.lse) == (out.address, lse.address) and args.stream is None
    far = Array(np.ones((1, 2, 3, 16), np.float32)[..., :8], 1)
    refused(ValueError, "states[0] out: must be dense", libattn.merge, [(far, states[0][1])])


def check_failure():
    """What the device said is in the error's text."""
    q = on_gpu(1, 2, 3, 8)
    libattn.attention(q, q, q)
    counts.fails = native.DRIVER
    refused(libattn.StatusError, "has failed: the stand-in was told to fail", libattn.attention, q, q, q)
    refused(libattn.StatusError, "the stand-in was told to fail", libattn.attention, *[on_gpu(1, 2, 3, 8, index=1)] * 3)  # to open it


def check_no_plugin():
    """Without ATTN_PLUGINS' stand-in, and where the loader finds none."""
    q = on_gpu(1, 2, 3, 8)
    refused(libattn.StatusError, "libattn_cuda.so", libattn.attention, q, q, q)
    x = np.ones((1, 2, 3, 8), np.float32)
    assert (libattn.attention(x, x, x) == 1).all()


CHECKS = {name[6:]: function for name, function in list(globals().items()) if name.startswith("check_")}

if __name__ == "__main__":
    name = sys.argv[1]
    if name != "no_plugin":
        counts = Counts.in_dll(ctypes.CDLL(str(pathlib.Path(os.environ["ATTN_PLUGINS"], "libattn_cuda.so"))), "stand_in")
    CHECKS[name]()
