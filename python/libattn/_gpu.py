"""Arrays in a GPU's memory: the stream to work in, and memory for what the library takes beside the arrays. It comes from the arrays' own
library, which orders its use by that stream: nothing here waits, and a call can be captured in a CUDA graph."""
from __future__ import annotations

import sys

from . import _arrays as arrays
from ._arrays import CUDA_DEVICES, DLPack

CODES = {False: ((2, 32, 1), "float32"), True: ((0, 32, 1), "int32")}  # of DLPack; by whether integers are wanted


def place(gpu):
    return "in the CPU's memory" if gpu is None else f"on the GPU cuda:{gpu}"


def holds(x):
    """Whether x is an array of a GPU's."""
    if arrays.torch_tensor(x):
        return x.is_cuda
    return hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) in CUDA_DEVICES


class TorchMemory:
    """like: a tensor on the GPU."""

    def __init__(self, like, index):
        self.torch, self.like, self.index = sys.modules["torch"], like, index
        self.stream = self.torch.cuda.current_stream(index).cuda_stream

    def scratch(self, size):
        memory = self.like.new_empty(size, dtype=self.torch.uint8)
        return memory.data_ptr(), memory

    def put(self, array):
        """A NumPy array's copy there."""
        copy = self.torch.tensor(array, device=self.like.device)
        return copy.data_ptr(), copy


class LibraryMemory:
    """like: an array of a library with the array API, whose work is done by the default stream's next."""

    stream = 0

    def __init__(self, like, index):
        self.library, self.like, self.index = like.__array_namespace__(), like, index

    def scratch(self, size):
        """Its start is a multiple of 64, whatever the library's own are."""
        memory = self.library.empty(size + 63, dtype=self.library.uint8, device=self.like.device)
        return -(-DLPack.look(memory)[1] // 64) * 64, memory

    def put(self, array):
        return DLPack.look(self.library.asarray(array, device=self.like.device))[1:]


def memory_of(kind, like, index):
    return (TorchMemory if kind is arrays.Torch else LibraryMemory)(like, index)


def vector(memory, name, x, integers, count):
    """The address of a small vector that lies on a GPU already, and what holds it. Its values are not looked at: that would wait for them.
    Tensors of other types are converted there, and one number of lengths is repeated."""
    code, wanted = CODES[integers]
    if arrays.torch_tensor(x):
        if (x.is_floating_point() and integers) or x.dtype.is_complex or x.dtype == sys.modules["torch"].bool:
            raise TypeError(f"{name}: must hold {'integers' if integers else 'numbers'}, not {x.dtype}")
        shape, index = tuple(x.shape), x.device.index
        x = x.detach().to(getattr(sys.modules["torch"], wanted))
        if shape == () and integers:
            x, shape = x.expand(count), (count,)
        x = x.contiguous()
        address, keep = x.data_ptr(), x
    else:
        (shape, strides, given, device), address, keep = DLPack.look(x, memory.stream)
        index = device[1]
        if given != code or (strides is not None and count > 1 and strides != (1,)):
            raise TypeError(f"{name}: must be a contiguous vector of {wanted} where it lies on a GPU")
    if index != memory.index:
        raise ValueError(f"{name}: lies {place(index)}, but q {place(memory.index)}")
    if shape != (count,):
        raise ValueError(f"{name}: its shape is {'×'.join(map(str, shape)) or 'no axes'} but must be {count}, "
                         f"{'one for each sequence' if integers else 'one for each head of q'}")
    return address, keep


def dense(kind, name, x):
    """The address of a copy of x whose rows lie one after the other, and what holds it."""
    if kind is not arrays.Torch:
        raise ValueError(f"{name}: must be dense and aligned where it lies on a GPU")
    copy = x.clone(memory_format=sys.modules["torch"].contiguous_format)
    return copy.data_ptr(), copy
