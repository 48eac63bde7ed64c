"""libattn.torch beside PyTorch's own function, on the same tensors, in one process and in turn, and generation with a small Llama.

    make bench-python                  # with the checks' Python packages
    python bench/python_torch.py --attn build/attn --case D2 --type bf16

A round times a block of calls of each; the ratio is the median over the rounds of PyTorch's median divided by ours of the same round, with the
smallest and the largest beside it. Both are held against float64. `attn bench` makes the tensors, so the cases are those of
docs/performance.md; a case that PyTorch has no argument for is left out by name."""
import argparse
import contextlib
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE / "peers"), str(HERE.parent / "examples" / "python")]
import arrays  # noqa: E402
import tokens_per_second  # noqa: E402
import torch_sdpa  # noqa: E402

import libattn.torch  # noqa: E402

LEAST = 5  # calls of a block


def block(peer, seconds, first):
    """Each call takes the next copy of k and v, as `attn bench` does."""
    times, begun = [], time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < LEAST:
        before = time.perf_counter()
        peer.run(first + len(times))
        times.append(time.perf_counter() - before)
    return statistics.median(times), first + len(times)


def ways():
    return {"PyTorch": contextlib.nullcontext, "libattn": libattn.torch.installed}


def rounds_of(peer, seconds, rounds):
    """{way: seconds of each round}, {way: its result}."""
    found, results, at = {name: [] for name in ways()}, {}, 0
    for number in range(rounds + 1):
        for name, around in list(ways().items())[:: -1 if number % 2 else 1]:
            with around():
                median, at = block(peer, seconds if number else 0, at)
                results[name] = peer.result()
            if number:  # the first round warms up
                found[name].append(median)
    return found, results


def copies_of(tensors):
    """So many that one is out of the caches when its turn comes again."""
    size = tensors["k"].nbytes + tensors["v"].nbytes
    return max(1, min(64, (256 << 20) // size))


def compare(options, case, kind, folder):
    path = pathlib.Path(folder) / "case.safetensors"
    subprocess.run([options.attn, "bench", "--case", case, "--type", kind, "--save", str(path)], check=True, stdout=subprocess.DEVNULL)
    tensors, name, causal = arrays.read(path)
    try:
        peer = torch_sdpa.Peer("PyTorch SDPA", tensors, name, causal, copies_of(tensors), options.threads)
    except NotImplementedError as why:
        return print(f"{case:8} {kind:6} left out: {why}")
    libattn.torch.reset_stats()
    found, results = rounds_of(peer, options.seconds, options.rounds)
    if libattn.torch.stats()["left"]:
        sys.exit(f"{case} {kind}: left to PyTorch: {libattn.torch.stats()['left']}")
    want = arrays.attention(tensors, name, causal)
    ratios = sorted(p / o for p, o in zip(found["PyTorch"], found["libattn"]))
    print(f"{case:8} {kind:6} {statistics.median(ratios):6.2f} {ratios[0]:7.2f} to {ratios[-1]:5.2f}   "
          f"{arrays.error(results['libattn'], want):8.1e} {arrays.error(results['PyTorch'], want):9.1e}", flush=True)


def generation(options):
    model = tokens_per_second.small_model(options.context)
    prompt = torch.randint(0, 1000, (1, options.context))
    found = tokens_per_second.measure(model, prompt, options.tokens, options.rounds)
    before = found.pop("PyTorch")
    print(f"\ngeneration at a context of {options.context} tokens, PyTorch's time / ours")
    for name, way in found.items():
        parts = [statistics.median(before[part]) / statistics.median(way[part]) for part in ("prompt", "token")]
        same = "the same tokens" if way["tokens"] == before["tokens"] else "OTHER TOKENS"
        print(f"{name:36} prompt {parts[0]:.2f}, token {parts[1]:.2f}; {same}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attn", default="build/attn", help="the command attn (%(default)s)")
    parser.add_argument("--case", action="append", help="of attn bench --list; may be repeated (all)")
    parser.add_argument("--type", default="f32,f16,bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a block")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--context", type=int, default=4096, help="of the generation; 0: none")
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = options.case or subprocess.run([options.attn, "bench", "--list"], check=True, capture_output=True, text=True).stdout.split()
    print(f"PyTorch {torch.__version__}, libattn {libattn.info()['version']}, {libattn.info()['isa']}, {options.threads} threads")
    print("case     type    ratio smallest, largest   error: ours  PyTorch's")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            for kind in options.type.split(","):
                compare(options, case, kind, folder)
    if options.context:
        generation(options)


if __name__ == "__main__":
    main()
