"""Tensor files written and read by hand, so that the command's own readers and writers have something independent to agree with.

bf16 has no numpy type: it travels as `Bf16`, a uint16 array of bit patterns that the writers know by its class."""
import json
import struct

import numpy as np


class Bf16(np.ndarray):
    """uint16 bit patterns of bf16 numbers."""


def to_bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(Bf16)


def to_type(values, name):
    if name == "bf16":
        return to_bf16(values)
    return np.asarray(values).astype({"f32": np.float32, "f16": np.float16, "f64": np.float64}[name])


def to_f64(array):
    if isinstance(array, Bf16):
        return (np.asarray(array).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.asarray(array).astype(np.float64)


DESCR = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bool": "|b1", "uint8": "|u1", "int32": "<i4", "int64": "<i8"}
DTYPE = {"float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL", "uint8": "U8", "int32": "I32", "int64": "I64"}


def npy_bytes(array, version=1, descr=None, fortran=False, header=None):
    """A .npy file; `header` replaces the whole dict."""
    plain = np.asarray(array)
    descr = descr or ("|V2" if isinstance(array, Bf16) else DESCR[plain.dtype.name])
    if header is None:
        header = repr({"descr": descr, "fortran_order": fortran, "shape": plain.shape})
    digits = 2 if version == 1 else 4
    length = -(-(8 + digits + len(header) + 1) // 64) * 64 - 8 - digits
    text = header.ljust(length - 1).encode() + b"\n"
    lead = b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(digits, "little")
    return lead + text + plain.tobytes("F" if fortran else "C")


def safetensors_header(tensors, metadata=None):
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, array in tensors.items():
        plain = np.asarray(array)
        dtype = "BF16" if isinstance(array, Bf16) else DTYPE[plain.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(plain.shape), "data_offsets": [at, at + plain.nbytes]}
        at += plain.nbytes
    return header


def safetensors_file(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def safetensors_bytes(tensors, metadata=None):
    return safetensors_file(safetensors_header(tensors, metadata), b"".join(np.asarray(t).tobytes() for t in tensors.values()))


def write(path, array):
    path.write_bytes(npy_bytes(array) if path.suffix == ".npy" else safetensors_bytes({path.stem: array}))
    return path


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    types = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    tensors = {}
    assert length % 8 == 0
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[8 + length :][begin:end], types[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = array.view(Bf16) if entry["dtype"] == "BF16" else array
    return tensors


def read(path):
    """The single tensor of a file that the command wrote."""
    if path.suffix == ".safetensors":
        ((_, array),) = read_safetensors(path).items()
        return array
    array = np.load(path)
    return array.view(np.uint16).view(Bf16) if array.dtype == np.dtype("V2") else array
