"""One attention over keys that lie on two machines: each sends a state of tens of kB, and no key ever moves.

    python two_machines.py --keys 100000

The machines are two processes here, which share nothing and talk over TCP. Each makes up its own part of the keys and values, gets the
queries, and answers with (out, lse) over what it holds. The states are merged, and that is the attention over all keys."""
import argparse
import multiprocessing
import os
from multiprocessing.connection import Client, Listener

import numpy as np

import exact
import libattn

HEADS_Q, HEADS_KV, DIM, ROWS = 16, 2, 64, 8  # ROWS: the sequence's last tokens, causal among each other


def keys_and_values(first, end):
    """Rows first to end of k and v, which are the same whoever asks."""
    made = [np.random.default_rng(j).standard_normal((2, HEADS_KV, DIM), np.float32) for j in range(first, end)]
    k, v = np.stack(made, axis=2)
    return k[None], v[None]


def machine(console, secret, first, end):
    """Holds keys first to end. Says where it listens, and serves one request: queries and the diagonal come in, a state goes out."""
    k, v = keys_and_values(first, end)
    with Listener(("localhost", 0), authkey=secret) as listener:
        console.send(listener.address)
        line = listener.accept()
    with line:
        q, diagonal = line.recv()
        # Row i sees keys up to i + diagonal of the whole, which is i + diagonal - first of what lies here.
        state = libattn.attention(q, k, v, causal="top-left", offset=diagonal - first, return_lse=True)
        line.send((first, k.nbytes + v.nbytes, state))


def ask(parts, q, diagonal):
    """Starts a process for each part and returns their states, in the order of the keys."""
    secret, spawn = os.urandom(16), multiprocessing.get_context("spawn")
    processes, consoles = [], []
    for part in parts:
        console, its_end = spawn.Pipe(duplex=False)
        processes.append(spawn.Process(target=machine, args=(its_end, secret, *part), daemon=True))
        processes[-1].start()
        its_end.close()  # or recv would wait for ever on a machine that died
        consoles.append(console)
    lines = [Client(console.recv(), authkey=secret) for console in consoles]
    for line in lines:
        line.send((q, diagonal))
    answers = sorted((line.recv() for line in lines), key=lambda answer: answer[0])
    for process in processes:
        process.join()
    for first, held, state in answers:
        print(f"the machine with keys from {first} on holds {held / 1e6:.1f} MB and sent {sum(x.nbytes for x in state) / 1e3:.1f} kB")
    return [state for _, _, state in answers]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=20000)
    keys = parser.parse_args().keys
    q = np.random.default_rng(2**40).standard_normal((1, HEADS_Q, ROWS, DIM), np.float32)
    middle, diagonal = keys // 3, keys - ROWS
    states = ask([(0, middle), (middle, keys)], q, diagonal)
    out, lse = libattn.merge(states)

    k, v = keys_and_values(0, keys)
    whole, whole_lse = libattn.attention(q, k, v, causal="bottom-right", return_lse=True)
    out_differs, lse_differs = np.abs(out - whole).max(), np.abs(lse - whole_lse).max()
    print(f"merged, against one call over all keys: out differs by {out_differs:.1e}, lse by {lse_differs:.1e}")
    expected = exact.attention_and_bound(q[0], k[0], v[0], diagonal)
    exact.verify("one call over all keys", whole[0], *expected)
    exact.verify("merged from two machines", out[0], *expected)


if __name__ == "__main__":
    main()
