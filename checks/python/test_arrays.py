"""Arrays of every kind where they lie: no copy, results of the caller's kind, nothing held and nothing leaked, and the GIL released."""
import array
import contextlib
import ctypes
import gc
import resource
import subprocess
import sys
import threading
import time
import weakref

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import libattn
from libattn import _arrays, _attention

MIB = 1 << 20


def numbers(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class OnlyDLPack:
    """A producer with nothing but DLPack."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class OnlyInterface:
    def __init__(self, x):
        self.x = x
        self.__array_interface__ = x.__array_interface__


def as_torch(x):
    return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16) if x.dtype == ml_dtypes.bfloat16 else torch.from_numpy(x)


def plain(x):
    """As a float32 array, whatever it is."""
    return x.float().numpy() if isinstance(x, torch.Tensor) else np.asarray(x).astype(np.float32)


KINDS = {"numpy": (lambda x: x, np.ndarray), "torch": (as_torch, torch.Tensor), "jax": (jnp.asarray, jnp.ndarray),
         "dlpack": (lambda x: OnlyDLPack(as_torch(x)), np.ndarray), "interface": (OnlyInterface, np.ndarray),
         "buffer": (memoryview, np.ndarray)}


def kinds_with(dtype):
    """The buffer protocol and __array_interface__ have no name for bfloat16."""
    return [kind for kind in KINDS if dtype is not ml_dtypes.bfloat16 or kind not in ("interface", "buffer")]


@pytest.mark.parametrize("kind, dtype", [(kind, dtype) for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
                                         for kind in kinds_with(dtype)])
def test_kinds(kind, dtype):
    make, expected = KINDS[kind]
    arrays = [numbers((1, 2, n, 8), dtype, n) for n in (3, 5, 5)]
    want = libattn.attention(*arrays)
    out, lse = libattn.attention(*map(make, arrays), return_lse=True)
    assert isinstance(out, expected) and isinstance(lse, expected)
    assert np.array_equal(plain(out), want.astype(np.float32))
    assert out.dtype == (as_torch(want).dtype if expected is torch.Tensor else want.dtype)
    for other in kinds_with(dtype):  # q's kind decides
        mixed = libattn.attention(make(arrays[0]), KINDS[other][0](arrays[1]), make(arrays[2]))
        assert isinstance(mixed, expected) and np.array_equal(plain(mixed), want.astype(np.float32))


def test_array_array():
    x = array.array("f", numbers(48).tolist())
    view = memoryview(x).cast("B").cast("f", (1, 2, 3, 8))
    assert np.array_equal(libattn.attention(view, view, view), libattn.attention(*[np.asarray(view)] * 3))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_views_are_read_where_they_lie(kind):
    """A write through the base shows in the next call with the same view."""
    make = KINDS[kind][0]
    base = numbers((1, 4, 40, 20))
    view = base[:, ::2, 5::-1, 2:10] if kind == "numpy" else make(base)[:, ::2, :6, 2:10]
    before = plain(libattn.attention(view, view, view)).copy()
    base *= 2
    after = plain(libattn.attention(view, view, view))
    dense = np.ascontiguousarray(plain(view))
    assert not np.array_equal(before, after) and np.array_equal(after, libattn.attention(dense, dense, dense))


@contextlib.contextmanager
def room(size):
    """The process gets no more than so many bytes of addresses beyond those it has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("kind", KINDS)
def test_no_copy(kind):
    """k, v and a mask of 64 MiB each, strided where their kind can be, with no room for another 48. A window keeps the work small."""
    make = KINDS[kind][0]
    keys, rows, gap = 64 * MIB // 256, 256, 0 if kind == "jax" else 8
    k, v = (make(np.zeros((1, 1, keys, 64 + gap), np.float32)[..., gap:]) for _ in "kv")
    mask = make(np.ones((rows, keys + gap), bool)[:, gap:])
    q = make(np.ones((1, 1, rows, 64), np.float32))
    call = lambda: libattn.attention(q, k, v, mask=mask, causal="bottom-right", window=4, threads=1)
    call()
    with room(48 * MIB):
        out = call()
    assert not plain(out).any()


def test_a_lack_of_memory():
    """Values so long that their sums take more than there is."""
    q, v, out = numbers((1, 1, 1, 4)), np.zeros((1, 1, 1, MIB), np.float32), np.full((1, 1, 1, MIB), 7, np.float32)
    assert libattn.explain(q, q, v, threads=1).workspace > 256 * MIB
    libattn.attention(q, q, q, threads=1)  # what is made once
    with room(64 * MIB), pytest.raises(MemoryError, match="memory"):
        libattn.attention(q, q, v, out=out, threads=1)
    assert (out == 7).all()


def test_arguments_are_not_held():
    x = numbers((1, 1, 4, 8))
    kept = weakref.ref(x)
    tensor = torch.ones(1, 1, 4, 8)
    also = weakref.ref(tensor)
    libattn.attention(x, x, x), libattn.attention(tensor, tensor, tensor)
    del x, tensor
    gc.collect()
    assert kept() is None and also() is None


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax", "dlpack", "buffer"])
def test_nothing_leaks(kind):
    """References of the source, and the process's memory over calls whose results are let go."""
    source = numbers((1, 2, 64, 64))
    x = KINDS[kind][0](source)
    call = lambda: libattn.attention(x, x, x, return_lse=True)
    for _ in range(300):
        call()
    references, memory = sys.getrefcount(source), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3000):
        call()
    gc.collect()
    assert sys.getrefcount(source) == references
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 32 * 1024  # KiB: 3,000 results would be 200 MB


class Producer:
    """DLPack by hand: its data begin past the pointer, and are there as long as something is handed out and not yet let go."""

    def __init__(self, x, skipped):
        self.data, self.open = np.concatenate([np.full(skipped, np.nan, x.dtype), x.ravel()]), 0
        self.x = np.full_like(self.data, np.nan)
        self.shape = (ctypes.c_int64 * x.ndim)(*x.shape)
        self.managed = (ctypes.c_char * 128)()
        tensor = _arrays.DLTensor.from_buffer(self.managed)
        tensor.data, tensor.device_type, tensor.ndim, tensor.code, tensor.bits, tensor.lanes = self.x.ctypes.data, 1, x.ndim, 2, 32, 1
        tensor.shape, tensor.byte_offset = self.shape, 4 * skipped
        self.ends = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self.end)

    def end(self, capsule):
        self.open -= 1
        if self.open == 0:
            self.x[:] = np.nan

    def __dlpack__(self):
        self.open += 1
        self.x[:] = self.data
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", ctypes.cast(self.ends, ctypes.c_void_p))

    def __dlpack_device__(self):
        return 1, 0


def test_a_producer_of_the_oldest_dlpack():
    x = numbers((1, 2, 5, 8))
    producer = Producer(x, 3)
    assert np.array_equal(libattn.attention(producer, producer, producer), libattn.attention(x, x, x))
    with pytest.raises(ValueError):
        libattn.attention(producer, producer, producer, scale=np.nan)
    _arrays.DLTensor.from_buffer(producer.managed).lanes = 2  # vectors of two
    with pytest.raises(TypeError, match="DLPack type"):
        libattn.attention(producer, producer, producer)
    gc.collect()
    assert producer.open == 0


def test_memory_that_is_read_only(tmp_path):
    x = numbers((1, 2, 3, 8))
    want = libattn.attention(x, x, x)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for given in (mapped, memoryview(mapped), OnlyDLPack(mapped), memoryview(x.tobytes()).cast("f", x.shape)):
        assert np.array_equal(libattn.attention(given, given, given), want)


@pytest.mark.parametrize("kind", ["numpy", "torch", "interface", "buffer"])
def test_out_of_each_kind(kind):
    x, memory = numbers((1, 2, 3, 8)), np.zeros((1, 2, 3, 8), np.float16)
    out = KINDS[kind][0](memory)
    assert libattn.attention(x, x, x, out=out) is out
    assert np.array_equal(memory, libattn.attention(x, x, x, out=np.empty_like(memory)))


def test_out_that_autograd_kept():
    """It is no longer what the gradient has to be computed from."""
    x, weight = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4, requires_grad=True)
    for write in (lambda out: libattn.attention(x, x, x, out=out), lambda out: libattn.merge([(x, torch.zeros(1, 1, 2))], out=out)):
        out = torch.zeros(1, 1, 2, 4)
        loss = (out * weight).sum()
        write(out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        with torch.inference_mode():
            out = torch.zeros(1, 1, 2, 4)
        write(out)
        assert (out == 1).all()


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, jnp.array])
def test_small_arrays(kind):
    q, k = numbers((2, 2, 3, 4)), numbers((2, 2, 5, 4), seed=1)
    small = {"sinks": [0.5, 1.0], "alibi_slopes": [0.25, 2.0], "len_q": [2, 3], "len_kv": [5, 3]}
    want = libattn.attention(q, k, k, **{name: np.array(x, np.int32 if name[:3] == "len" else np.float32) for name, x in small.items()})
    assert np.array_equal(libattn.attention(q, k, k, **{name: kind(x) for name, x in small.items()}), want)
    if kind is torch.tensor:
        small = {name: torch.tensor(x, dtype=None if name[:3] == "len" else torch.bfloat16) for name, x in small.items()}
        assert np.array_equal(libattn.attention(q, k, k, **small), want)


def test_a_producer_of_a_null_pointer():
    producer = Producer(numbers((1, 2, 5, 8)), 0)
    _arrays.DLTensor.from_buffer(producer.managed).data = None
    with pytest.raises(TypeError, match="^q: .*no memory"):
        libattn.attention(producer, producer, producer)


def test_a_producer_of_a_later_dlpack():
    """Whose capsule may lie in another way."""
    class Later(OnlyDLPack):
        def __dlpack__(self, max_version=None):
            if max_version is None:
                raise BufferError("it is read-only")
            capsule = self.x.__dlpack__(max_version=max_version)
            _arrays.VersionedDLTensor.from_address(_arrays.capsule_pointer(capsule, b"dltensor_versioned")).major = 2
            return capsule

    later = Later(numbers((1, 2, 5, 8)))
    with pytest.raises(TypeError, match="^q: .*DLPack 2"):
        libattn.attention(later, later, later)


def test_exported_memory_is_let_go():
    """DLPack's producer may free or resize as soon as the call is over."""
    storage = array.array("f", [0.0] * 64)
    view = memoryview(storage).cast("B").cast("f", (1, 1, 8, 8))
    libattn.attention(view, view, view)
    view.release()
    storage.append(1.0)  # BufferError where a view is still open


def test_plans_are_bounded():
    x = numbers((1, 1, 1, 4))
    k = numbers((1, 1, 3000, 4))
    for n in range(1, 3000):
        libattn.attention(x, k[:, :, :n], k[:, :, :n], threads=1)
    assert len(_attention.plans) <= _attention.KEPT


def test_classes_are_let_go():
    for _ in range(300):
        x = numbers((1, 1, 2, 4)).view(type("Array", (np.ndarray,), {}))
        libattn.attention(x, x, x)
    assert len(_arrays.kinds) <= 100


def test_plans_do_not_remember_what_may_change():
    q, k = numbers((1, 1, 2, 4)), numbers((1, 1, 5, 4), seed=1)
    for scale in (torch.tensor(0.5), np.array(0.5)):
        for expected in (0.5, 2.0):
            assert np.array_equal(libattn.attention(q, k, k, scale=scale), libattn.attention(q, k, k, scale=expected))
            scale *= 4
    window = [3, 0]
    for expected in ((3, 0), (0, 0)):
        assert np.array_equal(libattn.attention(q, k, k, window=window), libattn.attention(q, k, k, window=expected))
        window[0] = 0


def test_many_threads_of_pythons():
    """Each in calls of its own shapes, types and options."""
    jobs = [(numbers((2, 4, 20 + n, 8 + n), (np.float32, np.float16)[n % 2]), {"threads": 1 + n % 3}) for n in range(6)]
    expected = [libattn.attention(x, x, x, **options).tobytes() for x, options in jobs]
    wrong = []

    def work(n):
        x, options = jobs[n]
        for _ in range(100):
            if libattn.attention(x, x, x, **options).tobytes() != expected[n]:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_gil_is_released():
    """While one thread is in a long call, this one goes on."""
    x = numbers((1, 8, 3000, 64))
    done, ticks = threading.Event(), 0

    def work():
        libattn.attention(x, x, x, threads=1)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert ticks > 20  # the call takes a second or so; with the GIL held there would be one or two


def test_imports_alone():
    """The core needs neither PyTorch nor JAX nor ml_dtypes."""
    program = ("import sys\n"
               "for name in ('torch', 'jax', 'ml_dtypes', 'transformers', 'onnx'): sys.modules[name] = None\n"
               "import numpy as np, libattn\n"
               "x = np.ones((1, 1, 2, 4), np.float32)\n"
               "assert (libattn.attention(x, x, x) == 1).all()\n")
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("module, package", [("torch", "torch"), ("transformers", "torch"), ("transformers", "transformers"),
                                             ("onnx", "onnx")])
def test_a_package_that_is_not_there(module, package):
    program = f"import sys\nsys.modules[{package!r}] = None\nimport libattn.{module}\n"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 1
    said = found.stderr.splitlines()[-1]
    assert said.startswith(f"ModuleNotFoundError: libattn.{module} needs packages") and f"libattn[{module}]" in said


def freed():
    """A tensor as sharded training leaves it: with its shape, but its memory given back."""
    tensor = torch.ones(1, 2, 300, 64)
    tensor.untyped_storage().resize_(0)
    return tensor


NO_MEMORY = {"freed": freed, "fake": lambda: FakeTensorMode(allow_non_fake_inputs=True).from_tensor(torch.ones(1, 2, 300, 64)),
             "zero": lambda: torch._efficientzerotensor((1, 2, 300, 64))}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("kind", NO_MEMORY)
@pytest.mark.parametrize("name", ["q", "k", "mask", "out"])
def test_elements_without_memory(kind, name):
    x = torch.ones(1, 2, 300, 64)
    arrays = {"q": x, "k": x, "v": x, name: NO_MEMORY[kind]()}
    with pytest.raises(TypeError) as error:
        libattn.attention(**arrays)
    assert str(error.value).startswith(f"{name}: ") and "no memory" in str(error.value)


def test_results_without_memory():
    """Under a mode that makes tensors without memory, and in a function that torch.func makes functional, there is nothing to write to."""
    x = torch.ones(1, 2, 300, 64)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(TypeError, match="^out: .*no memory"):
        libattn.attention(x, x, x)
    with pytest.raises(TypeError, match="^q: .*no memory"):
        torch.func.functionalize(lambda a: libattn.attention(a, a, a))(x)
