"""libattn on a GPU beside PyTorch's backends (cuDNN, flash), on the same tensors, in one process and in turn.

    python3 bench/peers/torch_cuda.py --library build/libattn.so            (PyTorch with CUDA, on the machine with the GPU)

Each way is captured into a CUDA graph of several calls, whose inputs go round among copies larger together than the second cache, so that
neither launches by Python nor cached inputs count. Times are medians over rounds in which the ways take turns. Inputs are normal numbers:
products of zeros take less power, and run faster. Every result is held against float64 on some rows."""
import argparse
import pathlib
import statistics
import sys

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from libattn import _native as native  # noqa: E402

TYPES = {"f16": (torch.float16, native.F16), "bf16": (torch.bfloat16, native.BF16)}
CASES = [  # name, batch, heads_q, heads_kv, len_q, len_kv, dim, causal
    ("origin", 1, 32, 2, 1, 1024, 128, False), ("decode 1 x 8k", 1, 32, 8, 1, 8192, 128, False),
    ("decode 1 x 8k, 4 rows", 1, 32, 8, 4, 8192, 128, False), ("decode 1 x 128k", 1, 32, 8, 1, 131072, 128, False),
    ("decode 64 x 8k", 64, 32, 8, 1, 8192, 128, False), ("decode 16 x 32k", 16, 64, 8, 1, 32768, 128, False),
    ("prefill 4k", 4, 32, 32, 4096, 4096, 128, False), ("prefill 8k causal", 4, 32, 8, 8192, 8192, 128, True),
    ("prefill 2k causal", 4, 32, 8, 2048, 2048, 128, True), ("prefill 4k, dim 64", 4, 32, 32, 4096, 4096, 64, False),
    ("prefill 8k causal, dim 256", 2, 16, 16, 8192, 8192, 256, True),
]
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
AWAY = 3e8  # bytes: copies together are larger than the second cache


class Ours:
    """A context, the problem, and a workspace that stays where it is, as a graph wants it."""

    def __init__(self, library, precision, q, k, causal, kind):
        self.context = library.open(device=native.CUDA, precision=precision)
        self.problem = self.context.problem(native.BHLD, kind, q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
        if causal:
            self.problem.right = 0
        size = self.context.workspace(self.problem)
        self.out, self.workspace = torch.empty_like(q), torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
        self.kernel = self.context.explain(self.problem).kernel.decode()

    def __call__(self, q, k, v):
        arguments = native.stamped(native.Args, q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), out=self.out.data_ptr(),
                                   workspace=self.workspace.data_ptr(), workspace_size=self.workspace.numel(),
                                   stream=torch.cuda.current_stream().cuda_stream)
        self.context.library.check(self.context.forward(self.problem, arguments))
        return self.out


def theirs(backend, causal, grouped):
    def call(q, k, v):
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    return call


def captured(call, sets, calls):
    """A function that replays `calls` calls and returns the seconds of one."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for one in sets[:2]:
            call(*one)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                call(*sets[i % len(sets)])
    torch.cuda.synchronize()

    def once():
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / calls * 1e-3
    once()
    return once


def exact(q, k, v, causal, rows):
    """The last rows of the first sequence's first head, in float64."""
    q, k, v = q[0, 0, -rows:].double(), k[0, 0].double(), v[0, 0].double()
    scores = q @ k.T * q.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(k.shape[0] - rows + 1), -torch.inf)
    return scores.softmax(-1) @ v


def measure(library, case, name, rounds):
    label, batch, heads_q, heads_kv, len_q, len_kv, dim, causal = case
    dtype, kind = TYPES[name]
    moved = 2 * batch * heads_kv * len_kv * dim * 2
    copies = max(2, min(64, int(AWAY // moved) + 1))
    sizes = (heads_q, len_q), (heads_kv, len_kv), (heads_kv, len_kv)
    sets = [[torch.randn(batch, heads, length, dim, device="cuda", dtype=dtype) for heads, length in sizes] for _ in range(copies)]
    calls = {"ours": Ours(library, native.EXACT, *sets[0][:2], causal, kind)}
    if calls["ours"].kernel == "prefill":
        calls["ours, fast"] = Ours(library, native.FAST, *sets[0][:2], causal, kind)
    calls |= {peer: theirs(backend, causal, heads_q != heads_kv) for peer, backend in BACKENDS.items()}
    want = exact(*sets[0], causal, min(len_q, 64))
    error = lambda out: ((out[0, 0, -want.shape[0]:].double() - want).abs().max() / want.abs().max()).item()
    errors = {way: error(call(*sets[0])) for way, call in calls.items()}
    replays = {way: captured(call, sets, max(4, copies)) for way, call in calls.items()}
    times = {way: [] for way in calls}
    for number in range(rounds):
        for way in list(calls)[:: -1 if number % 2 else 1]:
            times[way].append(replays[way]())
    operations = 4 * batch * heads_q * len_q * len_kv * dim * (0.5 if causal else 1)
    for way in calls:
        seconds = statistics.median(times[way])
        rate = f"{operations / seconds / 1e12:7.0f} TFLOP/s" if len_q > 16 else f"{moved / seconds / 1e12:7.2f} TB/s   "
        ratio = statistics.median(a / b for a, b in zip(times["cuDNN"], times[way]))
        print(f"{label:27} {name:5} {way:11} {seconds * 1e6:9.1f} us {rate}  cuDNN's time over it {ratio:5.2f}  error {errors[way]:.1e}",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libattn.so, with libattn_cuda.so beside it")
    parser.add_argument("--type", default="bf16", help="f16, bf16 or both with a comma")
    parser.add_argument("--case", action="append", help="names that begin so; may be repeated")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    library = native.Library(options.library)
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"libattn {library.version()}")
    for case in CASES:
        if options.case is None or case[0].startswith(tuple(options.case)):
            for name in options.type.split(","):
                measure(library, case, name, options.rounds)


if __name__ == "__main__":
    main()
