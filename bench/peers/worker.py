"""worker.py MODULE THREADS: one peer in a process of its own, so that its threads and another's do not share a runtime. Reads one JSON
request a line, answers with one JSON line: {"load": path, "which": name, "copies": n}, {"time": seconds, "which": name},
{"save": path, "which": name}, {"drop": 1}."""
import gc
import importlib
import json
import os
import sys
import time

import numpy as np

import arrays

LEAST = 5  # runs of a block


class Loaded:
    """A peer with its arrays, and how many runs it has made: each run takes the next copy of k and v."""

    def __init__(self, peer):
        self.peer, self.runs = peer, 0

    def run(self):
        self.peer.run(self.runs)
        self.runs += 1

    def block(self, seconds):
        times, begun = [], time.perf_counter()
        now = begun
        while now - begun < seconds or len(times) < LEAST:
            before = time.perf_counter()
            self.run()
            now = time.perf_counter()
            times.append(now - before)
        return float(np.median(times))


def answer(module, loaded, request, threads):
    which = request.get("which")
    if "load" in request:
        tensors, name, causal = arrays.read(request["load"])
        one = loaded[which] = Loaded(module.Peer(which, tensors, name, causal, request["copies"], threads))
        for _ in range(2):  # first calls set things up
            one.run()
        return {"note": one.peer.note}
    if "time" in request:
        return {"seconds": loaded[which].block(request["time"])}
    if "save" in request:
        loaded[which].run()
        np.save(request["save"], loaded[which].peer.result())
        return {}
    loaded.clear()
    gc.collect()
    return {}


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    replies = os.fdopen(os.dup(1), "w")  # whatever the peer prints must not be taken for an answer
    os.dup2(2, 1)

    def reply(value):
        print(json.dumps(value), file=replies, flush=True)

    try:
        module = importlib.import_module(name)
    except ImportError as why:
        return reply({"missing": str(why)})
    reply({"names": module.NAMES, "version": module.VERSION})
    loaded = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply(answer(module, loaded, request, threads))
        except Exception as why:  # of any kind: a peer that lacks a case says so in its own way
            loaded.pop(request.get("which"), None)
            reply({"unable": str(why).strip().split("\n")[0] or type(why).__name__})


if __name__ == "__main__":
    main()
