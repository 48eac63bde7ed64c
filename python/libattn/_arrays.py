"""Arrays of other libraries as addresses, shapes and strides, without a copy.

A *kind* is what one library's arrays have in common. Its `look` says, as quickly as that library can, what an array is (a signature, equal
for equal descriptions) and where; its `read` says what a signature means, in elements: (shape, strides, type); its `gpu`, on which GPU
that is, None for the CPU's memory. Memory of a GPU is never touched here; _gpu.py has what only arrays there need."""
from __future__ import annotations

import ctypes
import math
import sys
from ctypes import POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object

import numpy as np

from . import _native as native

TYPES = {"f32": native.F32, "f16": native.F16, "bf16": native.BF16, "bool": native.BOOL}
NAMES = {code: name for name, code in TYPES.items()}
SIZES = {native.F32: 4, native.F16: 2, native.BF16: 2, native.BOOL: 1}

nowhere = ctypes.create_string_buffer(64)
NOWHERE = ctypes.addressof(nowhere)  # stands for an array of no elements: the library wants an address all the same


def address_of_none(elements):
    """For an array whose address is null. With elements that is a fake tensor's, or a storage's that was freed under it."""
    if elements:
        raise ValueError("it has elements but no memory (a fake tensor, or its storage was freed)")
    return NOWHERE


capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = c_void_p, [py_object, c_char_p]


class ArrayInterface(Structure):
    """What __array_struct__ hands out, of NumPy's array interface, version 3. Half as long to look into as x.ctypes.data."""

    _fields_ = [("two", c_int), ("ndim", c_int), ("kind", c_char), ("itemsize", c_int), ("flags", c_int), ("shape", c_void_p),
                ("strides", c_void_p), ("data", c_void_p), ("descr", c_void_p)]


def numpy_address(x, interface=ArrayInterface.from_address):
    return interface(capsule_pointer(x.__array_struct__, None)).data or NOWHERE


def dense_strides(shape):
    """Of rows one after the other; sizes may be PyTorch's symbols."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


class Kind:
    @staticmethod
    def gpu(signature):
        return None

    @staticmethod
    def finish(array):
        """What `empty` made, once it is written to, as the caller gets it."""
        return array

    @staticmethod
    def written(x):
        """Called when the caller's own array has been written to."""


class NumPy(Kind):
    """ndarray, of float32, float16, ml_dtypes.bfloat16 or bool in the machine's byte order."""

    dtypes = {np.dtype(np.float32): native.F32, np.dtype(np.float16): native.F16, np.dtype(np.bool_): native.BOOL}

    @staticmethod
    def look(x, stream=None):
        return (x.shape, x.strides, x.dtype), numpy_address(x), x

    @classmethod
    def read(cls, signature, name):
        shape, strides, dtype = signature
        code = cls.dtypes.get(dtype)
        if code is None:
            if dtype.name != "bfloat16" or not dtype.isnative:
                raise TypeError(f"{name}: dtype {dtype!s} is none of float32, float16, bfloat16 (of ml_dtypes), and bool for a mask")
            code = cls.dtypes[dtype] = native.BF16
        size = dtype.itemsize
        if any(stride % size for stride in strides):
            raise ValueError(f"{name}: strides {strides} (bytes) are not multiples of its element size {size}")
        return shape, tuple(stride // size for stride in strides), code

    @staticmethod
    def writable(x):
        return x.flags.writeable

    @staticmethod
    def empty(like, shape, code):
        return np.empty(shape, like.dtype if NumPy.dtypes.get(like.dtype) == code else dtype_of(code))


def dtype_of(code):
    if code != native.BF16:
        return np.dtype({native.F32: np.float32, native.F16: np.float16}[code])
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("bfloat16 results as NumPy arrays need the package ml_dtypes") from None
    return np.dtype(ml_dtypes.bfloat16)


class DLTensor(Structure):
    """The part of the DLPack ABI that every version shares."""

    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class VersionedDLTensor(Structure):
    """DLManagedTensorVersioned, of version 1 on."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p), ("flags", c_uint64),
                ("tensor", DLTensor)]


CPU_DEVICES = (1, 3, 11)  # plain, and pinned for CUDA or ROCm
CUDA_DEVICES = (2, 13)  # plain and managed
DEFAULT_STREAM = 1  # in DLPack; CUDA itself calls it 0 as well
DLPACK_TYPES = {(2, 32): native.F32, (2, 16): native.F16, (4, 16): native.BF16, (6, 8): native.BOOL}


class DLPack(Kind):
    """Anything with __dlpack__. The capsule is looked into and let go unconsumed, which frees what it holds. Results are NumPy arrays, or
    on a GPU the producer's own, by the array API."""

    @staticmethod
    def look(x, stream=DEFAULT_STREAM):
        """stream: where on a GPU the producer's work has to be done before ours; None: no memory of a GPU is wanted."""
        device = tuple(map(int, x.__dlpack_device__()))
        options = {}
        if device[0] in CUDA_DEVICES and stream is not None:
            options = {"stream": stream or DEFAULT_STREAM}
        elif device[0] not in CPU_DEVICES:
            return (None, None, None, device), 0, x
        try:
            capsule = x.__dlpack__(**options)
            tensor = DLTensor.from_address(capsule_pointer(capsule, b"dltensor"))
        except BufferError:  # read-only memory takes a version of the protocol that can say so
            capsule = x.__dlpack__(max_version=(1, 0), **options)
            versioned = VersionedDLTensor.from_address(capsule_pointer(capsule, b"dltensor_versioned"))
            if versioned.major != 1:
                raise BufferError(f"its capsule is of DLPack {versioned.major}, not 1") from None
            tensor = versioned.tensor
        shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
        address = (tensor.data or address_of_none(math.prod(shape))) + tensor.byte_offset
        return (shape, strides, (tensor.code, tensor.bits, tensor.lanes), device), address, capsule

    @staticmethod
    def gpu(signature):
        device = signature[3]
        return device[1] if device[0] in CUDA_DEVICES else None

    @staticmethod
    def read(signature, name):
        shape, strides, dtype, device = signature
        if device[0] not in CPU_DEVICES + CUDA_DEVICES:
            raise ValueError(f"{name}: lies on a device of DLPack's type {device[0]}, neither in the CPU's memory nor a CUDA device's")
        code = DLPACK_TYPES.get(dtype[:2]) if dtype[2] == 1 else None
        if code is None:
            raise TypeError(f"{name}: DLPack type (code, bits, lanes) {dtype} is none of float32, float16, bfloat16, and bool for a mask")
        return shape, tuple(dense_strides(shape) if strides is None else strides), code

    @staticmethod
    def writable(x):
        return False  # the protocol's oldest form, which all speak, does not say

    @staticmethod
    def empty(like, shape, code):
        if int(like.__dlpack_device__()[0]) not in CUDA_DEVICES:
            return np.empty(shape, dtype_of(code))
        library = like.__array_namespace__()
        return library.empty(shape, dtype=library.float32 if code == native.F32 else like.dtype, device=like.device)


class JAX(DLPack):
    """jax.Array on the CPU, as a value and not while it is traced; results are JAX arrays."""

    @classmethod
    def read(cls, signature, name):
        if cls.gpu(signature) is not None:
            raise ValueError(f"{name}: is a JAX array on a GPU, and only those on the CPU are taken")
        return super().read(signature, name)

    @staticmethod
    def finish(array):
        import jax.numpy
        return jax.numpy.asarray(array)


class Buffer(Kind):
    """What speaks the buffer protocol or __array_interface__: memoryview, array.array and so on. Results are NumPy arrays."""

    @staticmethod
    def look(x, stream=None):
        return NumPy.look(np.asarray(x))

    read = NumPy.read

    @staticmethod
    def writable(x):
        return np.asarray(x).flags.writeable

    @staticmethod
    def empty(like, shape, code):
        return np.empty(shape, dtype_of(code))


class Torch(Kind):
    """torch.Tensor, in the CPU's memory or a CUDA device's."""

    dtypes, is_grad_enabled, forward_ad = {}, None, None

    @classmethod
    def begin(cls):
        torch = sys.modules["torch"]
        cls.dtypes = {torch.float32: native.F32, torch.float16: native.F16, torch.bfloat16: native.BF16, torch.bool: native.BOOL}
        cls.is_grad_enabled, cls.forward_ad = staticmethod(torch.is_grad_enabled), torch.autograd.forward_ad

    @staticmethod
    def recorded(x):
        """Why what is computed from x would have to have gradients, or None."""
        if x.requires_grad and Torch.is_grad_enabled():
            return "requires_grad is set and libattn computes no gradients; call it under torch.no_grad() or detach()"
        if Torch.forward_ad._current_level >= 0 and Torch.forward_ad.unpack_dual(x).tangent is not None:
            return "it has a tangent (torch.autograd.forward_ad) and libattn computes none; detach() it"
        return None

    @staticmethod
    def look(x, stream=None):
        recorded = Torch.recorded(x) if x.requires_grad or Torch.forward_ad._current_level >= 0 else None
        return ((x.shape, x.stride(), x.dtype, x.is_cpu or x.device, recorded, x.is_neg()),
                x.data_ptr() or address_of_none((x.is_cpu or x.is_cuda) and x.numel()), x)

    @staticmethod
    def gpu(signature):
        device = signature[3]
        return device.index if device is not True and device.type == "cuda" else None

    @classmethod
    def read(cls, signature, name):
        shape, strides, dtype, device, recorded, is_negative = signature
        if recorded:
            raise ValueError(f"{name}: {recorded}")
        if device is not True and device.type != "cuda":
            raise ValueError(f"{name}: the tensor is on {device}, neither in the CPU's memory nor a CUDA device's")
        if is_negative:
            raise ValueError(f"{name}: a view with its sign bit pending; call resolve_neg() on it")
        code = cls.dtypes.get(dtype)
        if code is None:
            raise TypeError(f"{name}: dtype {dtype} is none of torch.float32, float16, bfloat16, and bool for a mask")
        return tuple(shape), tuple(strides), code

    @staticmethod
    def writable(x):
        return True

    @staticmethod
    def written(x):
        """What autograd may have kept of it is no longer what it was."""
        if not x.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(x)

    @classmethod
    def empty(cls, like, shape, code):
        if cls.dtypes.get(like.dtype) == code:
            return like.new_empty(shape)
        return like.new_empty(shape, dtype=next(dtype for dtype, c in cls.dtypes.items() if c == code))


def torch_tensor(x):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def jax_array(x):
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def jax_tracer(x):
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.core.Tracer)


kinds = {np.ndarray: NumPy}


def refuse_masked(x, name):
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name}: is a masked array, whose mask would count for nothing; give its data, and its mask as attention's")


def kind_of(x, name):
    """The kind of an array; remembered by its class."""
    kind = kinds.get(type(x))
    if kind is not None:
        return kind
    refuse_masked(x, name)
    if isinstance(x, np.ndarray):
        kind = NumPy
    elif torch_tensor(x):
        kind = Torch
        Torch.begin()
    elif jax_array(x):
        kind = JAX
    elif hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        kind = DLPack
    elif hasattr(x, "__array_interface__") or is_buffer(x):
        kind = Buffer
    else:
        raise TypeError(f"{name}: must be an array (NumPy, PyTorch, JAX, DLPack or a buffer), not {type(x).__name__}")
    if len(kinds) < 100:  # a class that is remembered lives for ever
        kinds[type(x)] = kind
    return kind


def look(x, name, stream=DEFAULT_STREAM):
    """The kind, the signature, the address, and what must live as long as the address is used. stream: see DLPack.look."""
    kind = kinds.get(type(x)) or kind_of(x, name)
    try:
        return kind, *kind.look(x, stream)
    except Exception as why:
        if jax_tracer(x):
            raise TypeError(f"{name}: is traced by JAX (under jit, grad or vmap), so it has no values yet") from why
        raise TypeError(f"{name}: {type(x).__name__} gives no access to its memory: {first_line(why)}") from why


def first_line(why):
    return (str(why).strip().splitlines() or [type(why).__name__])[0]


def small(x, name):
    """Any array or sequence as a NumPy array, copied where it has to be."""
    refuse_masked(x, name)
    try:
        if torch_tensor(x):
            recorded = kind_of(x, name).recorded(x)
            if recorded:
                raise ValueError(recorded)
            x = x.detach().cpu()
            x = x.float() if x.is_floating_point() else x
        return np.asarray(x)
    except Exception as why:
        raise (ValueError if isinstance(why, ValueError) else TypeError)(f"{name}: {first_line(why)}") from why


def is_buffer(x):
    if isinstance(x, (str, bytes, bytearray, list, tuple)):
        return False
    try:
        memoryview(x)
    except TypeError:
        return False
    return True
