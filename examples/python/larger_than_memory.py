"""Attention over keys and values in a file, in a process that may not allocate enough to copy them.

    python larger_than_memory.py --size 4096

A cache of keys and values is written to a file, mapped by NumPy, and handed to libattn.attention as it is. Before that, the process
takes away its own right to address more than a quarter of the cache's size in new memory, so whoever copies it fails. For Linux."""
import argparse
import pathlib
import resource
import tempfile
import time

import numpy as np

import exact
import libattn

HEADS_Q, HEADS_KV, DIM = 32, 4, 128
MIB = 1 << 20


def write_cache(path, keys):
    """[k or v, head, key, element] in float16, a piece at a time."""
    cache = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(2, HEADS_KV, keys, DIM))
    random = np.random.default_rng(1)
    for first in range(0, keys, 4096):
        piece = cache[:, :, first:first + 4096]
        piece[...] = random.standard_normal(piece.shape, np.float32)


def status(field):
    """A line of /proc/self/status, in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def forbid_more_than(size):
    limit = status("VmSize") + size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def run(path, keys):
    write_cache(path, keys)
    cache = np.load(path, mmap_mode="r")
    k, v = cache[None, 0], cache[None, 1]
    q = np.random.default_rng(2).standard_normal((1, HEADS_Q, 1, DIM), np.float32)
    print(f"{keys} keys: the cache is {cache.nbytes / MIB:.0f} MiB of a file, k and v half of it each")

    libattn.attention(q, k[:, :, :1024], v[:, :, :1024])  # starts the threads, whose stacks need addresses too
    exact.attention_and_bound(q[0], k[0, :, :64], v[0, :, :64])
    forbid_more_than(cache.nbytes // 4)
    print(f"from here on the process may allocate {cache.nbytes / 4 / MIB:.0f} MiB")
    try:
        np.array(k)
        raise SystemExit("a copy of k: succeeded, so this shows nothing")
    except MemoryError:
        print("a copy of k: MemoryError")

    before, start = status("RssAnon"), time.perf_counter()
    out = libattn.attention(q, k, v)
    seconds, grown = time.perf_counter() - start, status("RssAnon") - before
    print(f"attention: {seconds * 1e3:.1f} ms, {cache.nbytes / seconds / 1e9:.1f} GB/s, {grown / MIB:.2f} MiB of new memory")
    exact.verify("attention over the file", out[0], *exact.attention_and_bound(q[0], k[0], v[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=512, metavar="MIB", help="of the cache (default 512; at least 128)")
    parser.add_argument("--file", help="where to write it, and leave it (default: a temporary file)")
    options = parser.parse_args()
    if options.size < 128:
        parser.error("--size: at least 128, so that a copy would not fit what the process may still allocate")
    keys = options.size * MIB // (2 * HEADS_KV * DIM * 2)
    if options.file:
        return run(options.file, keys)
    with tempfile.TemporaryDirectory() as folder:
        run(pathlib.Path(folder) / "cache.npy", keys)


if __name__ == "__main__":
    main()
