"""attention and merge over arrays in a GPU's memory: what reaches the device, by a stand-in for it; where there is a GPU, the results."""
import math
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

import libattn
import stand_in
from libattn import _gpu

PLUGINS = pathlib.Path(libattn.info()["library"]).parent / "checks" / "plugins"


@pytest.mark.parametrize("name", stand_in.CHECKS)
def test_stand_in(name, tmp_path):
    folder = tmp_path if name == "no_plugin" else PLUGINS / "good"
    if sys.platform != "linux":
        pytest.skip("plugins are loaded on Linux")
    found = subprocess.run([sys.executable, stand_in.__file__, name], env={**os.environ, "ATTN_PLUGINS": str(folder)}, text=True,
                           capture_output=True, timeout=120)
    assert found.returncode == 0, found.stderr


def test_small_tensors_of_any_type():
    """As they are used on a GPU, without one: what is asked of a tensor is the same everywhere."""
    memory = types.SimpleNamespace(index=None)  # of CPU tensors
    read = lambda integers, x, count: _gpu.vector(memory, "x", x, integers, count)[1]
    assert torch.equal(read(True, torch.tensor([3, 4]), 2), torch.tensor([3, 4], dtype=torch.int32))
    assert torch.equal(read(True, torch.tensor(3), 2), torch.tensor([3, 3], dtype=torch.int32))
    assert torch.equal(read(False, torch.tensor([1, 2, 3, 4])[::2], 2), torch.tensor([1.0, 3.0]))
    same = torch.tensor([1.0, 2.0])
    assert _gpu.vector(memory, "x", same, False, 2)[0] == same.data_ptr()
    for integers, x, error in (
            (True, same, TypeError), (True, torch.ones(2, dtype=torch.bool), TypeError), (False, torch.tensor(1.0), ValueError),
            (False, torch.ones(2, dtype=torch.complex64), TypeError), (True, torch.ones(3, dtype=torch.int32), ValueError)):
        with pytest.raises(error, match="^x: "):
            read(integers, x, 2)


def gpu():
    """Where this PyTorch has one that the plugin can use."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device, or a PyTorch without CUDA")
    return torch.device("cuda", torch.cuda.current_device())


def tensors(dtype, batch=2, heads=(8, 2), rows=5, keys=700, dim=64):
    generator = torch.Generator().manual_seed(1)
    shapes = (batch, heads[0], rows, dim), (batch, heads[1], keys, dim), (batch, heads[1], keys, dim)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def expected(q, k, v, keys=None):
    """In double, of the keys up to keys[b]: out, lse."""
    q, k, v = (x.cpu().double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT / math.sqrt(q.shape[-1])
    if keys is not None:
        hidden = torch.arange(k.shape[2]) >= torch.as_tensor(keys)[:, None]
        scores = scores.masked_fill(hidden[:, None, None], -math.inf)
    return torch.softmax(scores, -1) @ v.repeat_interleave(group, 1), torch.logsumexp(scores, -1)


def close(found, want, dtype):
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    assert found.is_cuda
    torch.testing.assert_close(found.cpu().double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_results(dtype, rows):
    device = gpu()
    given = tensors(dtype, rows=rows)
    q, k, v = (x.to(device) for x in given)
    out, lse = libattn.attention(q, k, v, return_lse=True)
    want = expected(*given)
    assert out.dtype == dtype and lse.dtype == torch.float32
    close(out, want[0], dtype)
    close(lse, want[1], torch.float32 if dtype == torch.float32 else torch.float16)
    into = torch.empty(2, rows, 8, 64, dtype=dtype, device=device).transpose(1, 2)
    assert libattn.attention(q, k, v, out=into, device="cuda") is into and torch.equal(into, out)
    parts = [libattn.attention(q, k[:, :, part], v[:, :, part], out=torch.empty_like(q, dtype=torch.float32), return_lse=True)
             for part in (slice(0, 300), slice(300, None))]
    close(libattn.merge(parts)[0], want[0], dtype)


def test_streams():
    """A call waits for what its stream has to do, and for nothing else."""
    device = gpu()
    given = tensors(torch.bfloat16)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        q, k, v = (x.to(device, non_blocking=True) for x in given)
        out = libattn.attention(q, k, v)
        assert not stream.query()  # it came back before the stream got there
    stream.synchronize()
    close(out, expected(*given)[0], torch.bfloat16)


def test_graph():
    """Captured by its first call, with lengths on the device that change between replays."""
    device = gpu()
    given = tensors(torch.bfloat16, rows=1)
    q, k, v = (x.to(device) for x in given)
    lengths = torch.tensor([700, 700], dtype=torch.int32, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = libattn.attention(q, k, v, len_kv=lengths)
    for keys in ([700, 1], [3, 640]):
        lengths.copy_(torch.tensor(keys))
        graph.replay()
        torch.cuda.synchronize()
        close(out, expected(*given, keys)[0], torch.bfloat16)


def test_small_tensors():
    device = gpu()
    given = tensors(torch.float32)
    q, k, v = (x.to(device) for x in given)
    want = libattn.attention(q, k, v, len_kv=[30, 700], sinks=[0.5] * 8)
    sinks = torch.full((8,), 0.5, dtype=torch.float64, device=device)
    for lengths in (torch.tensor([30, 700]), torch.tensor([30, 700], device=device), np.array([30, 700], np.int16)):
        assert torch.equal(libattn.attention(q, k, v, len_kv=lengths, sinks=sinks), want)
    assert torch.equal(libattn.attention(q, k, v, len_kv=torch.tensor(9, device=device)), libattn.attention(q, k, v, len_kv=9))
    with pytest.raises(TypeError, match="^len_kv: must hold integers"):
        libattn.attention(q, k, v, len_kv=torch.tensor([30.0, 700.0], device=device))
    with pytest.raises(ValueError, match="^k: lies in the CPU's memory"):
        libattn.attention(q, given[1], v)
