"""The arrays that `attn bench --save` wrote, and attention in float64 to hold results against. bf16 travels as uint16 bit patterns."""
import json
import struct

import numpy as np

TYPES = {"F32": ("f32", np.float32), "F16": ("f16", np.float16), "BF16": ("bf16", np.uint16)}


def read(path):
    """{"q": array, "k": array, "v": array}, the type's name, and whether the band is causal; read only, not copied."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    arrays, name = {}, None
    for key in "qkv":
        name, dtype = TYPES[header[key]["dtype"]]
        shape, begin = header[key]["shape"], header[key]["data_offsets"][0]
        arrays[key] = np.fromfile(path, dtype, int(np.prod(shape)), offset=8 + length + begin).reshape(shape)
    return arrays, name, header.get("__metadata__", {}).get("causal")


def read_output(path):
    """The single tensor of a .safetensors file, as float64."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        ((_, entry),) = ((k, v) for k, v in json.loads(file.read(length)).items() if k != "__metadata__")
        name, dtype = TYPES[entry["dtype"]]
        return to_float64(np.frombuffer(file.read(), dtype).reshape(entry["shape"]), name)


def to_float32(array, name):
    return (array.astype(np.uint32) << 16).view(np.float32) if name == "bf16" else array.astype(np.float32)


def to_float64(array, name):
    return to_float32(array, name).astype(np.float64)


def attention(arrays, name, causal):
    """Exact to float64, one head and some rows at a time. The band: key j is seen by row i iff j <= i + d."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    batch, heads, rows, dim = q.shape
    keys, group = k.shape[2], q.shape[1] // k.shape[1]
    scale = float(np.float32(1 / np.sqrt(dim)))
    diagonal = keys - rows if causal == "bottom-right" else 0
    out = np.empty((batch, heads, rows, v.shape[3]))
    for b in range(batch):
        for g in range(k.shape[1]):
            kh, vh = to_float64(k[b, g], name), to_float64(v[b, g], name)
            for h in range(g * group, (g + 1) * group):
                for first in range(0, rows, 512):
                    last = min(rows, first + 512)
                    high = max(1, min(keys, last + diagonal)) if causal else keys  # keys that none of these rows sees are left out
                    s = scale * (to_float64(q[b, h, first:last], name) @ kh[:high].T)
                    if causal:
                        s[np.arange(high)[None, :] > np.arange(first, last)[:, None] + diagonal] = -np.inf
                    s = np.exp(s - s.max(axis=1, keepdims=True))
                    out[b, h, first:last] = (s @ vh[:high]) / s.sum(axis=1, keepdims=True)
    return out


def error(got, want):
    """The largest absolute error over the largest output."""
    return float(np.abs(got - want).max() / np.abs(want).max())
