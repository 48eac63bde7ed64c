"""Times other implementations and libattn in one sitting, on the same arrays, in turn, and writes peers.json for `attn bench --compare`.

For each case and type `attn bench --save` writes q, k and v; then, round by round, `attn bench` and every peer are timed one after another, each
in a process of its own. A ratio is the median over the rounds of the peer's median divided by ours of the same round. Every result is held
against float64. Options that are not named here are those of attn bench and are handed on to it."""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import numpy as np

import arrays

HERE = pathlib.Path(__file__).resolve().parent
MODULES = {"torch": "torch_sdpa", "onnxruntime": "onnx_runtime"}


def options(words):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--attn", required=True, help="the command attn")
    p.add_argument("--out", required=True, help="peers.json")
    p.add_argument("--peers", default=",".join(MODULES), help="which, with commas: %(default)s")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--case", action="append", default=[])
    p.add_argument("--shape", action="append", default=[])
    p.add_argument("--type", default="f32,f16,bf16")
    p.add_argument("--seconds", default="0.5", help="of a block: one median of one round")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--html", help=argparse.SUPPRESS), p.add_argument("--json", help=argparse.SUPPRESS)  # of the report that comes after
    known, others = p.parse_known_args(words)
    for word in known.peers.split(","):
        if word not in MODULES:
            p.error(f"--peers {word}: must be of {', '.join(MODULES)}, or none of this at all")
    for word in others:
        if re.match(r"--(mask|layout|save|compare)\b", word):
            p.error(f"{word}: does not go with peers; ours alone: make bench PEERS=none")
    if known.rounds < 1:
        p.error("--rounds: must be 1 or more")
    return known, others


class Worker:
    """A peer's process; `say` sends a request and returns the answer."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.read()

    def read(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"missing": "its process ended"}

    def say(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self.read()
        return {"unable": answer["missing"]} if "missing" in answer else answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Attn:
    """libattn through its command; `more` are options that every call gets."""

    def __init__(self, path, threads, more):
        self.path, self.more = os.path.abspath(path), [*more, *(["--threads", str(threads)] if threads else [])]

    def call(self, *args):
        done = subprocess.run([self.path, *map(str, args)], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout.strip() or f"peers.py: attn {args[0]} failed")
        return done.stdout

    def cases(self):
        return self.call("bench", "--list").split()

    def save(self, case, kind, path):
        self.call("bench", *case, "--type", kind, "--save", path)

    def time(self, case, kind, seconds):
        return json.loads(self.call("bench", *case, "--type", kind, "--seconds", seconds, "--json", "-", *self.more))

    def output(self, path, out):
        self.call("run", path, "-o", out, *self.more)
        return arrays.read_output(out)


def paired(peer, ours):
    """The median of the ratios of each round."""
    return statistics.median(p / o for p, o in zip(peer, ours, strict=True))


def load(workers, path, copies):
    """The peers that can do the case, as (worker, name, note), and those that cannot, with the reason in the note's place."""
    able, unable = [], []
    for worker in workers:
        for name in worker.about["names"]:
            answer = worker.say(load=str(path), which=name, copies=copies)
            (unable if "unable" in answer else able).append((worker, name, answer.get("unable") or answer.get("note", "")))
    return able, unable


def time_rounds(attn, peers, case, kind, rounds, seconds):
    """Blocks in turn; the order is turned around in every other round. The medians of ours, and of each peer by name."""
    ours, theirs = [], {name: [] for _, name, _ in peers}
    for number in range(rounds):
        for entry in [None, *peers][:: -1 if number % 2 else 1]:
            if entry is None:
                ours.append(attn.time(case, kind, seconds)["seconds_median"])
            else:
                theirs[entry[1]].append(entry[0].say(time=float(seconds), which=entry[1]).get("seconds"))
    return ours, theirs


def errors(peers, folder, want):
    found = {}
    for worker, name, _ in peers:
        if "unable" not in worker.say(save=str(folder / "out.npy"), which=name):
            found[name] = arrays.error(np.load(folder / "out.npy"), want)
    return found


def compare(attn, workers, case, kind, o, folder):
    """The entries of peers.json for one case and type."""
    path = folder / "case.safetensors"
    attn.save(case, kind, path)
    first = attn.time(case, kind, 0)
    copies = first["copies"]
    able, unable = load(workers, path, copies)
    for _, name, why in unable:
        print(f"  {case[1]} {kind}: {name} left out: {why[:160]}", file=sys.stderr)
    if not able:
        return []
    ours, theirs = time_rounds(attn, able, case, kind, o.rounds, o.seconds)
    tensors, name_of_type, causal = arrays.read(path)
    want = arrays.attention(tensors, name_of_type, causal)
    error_ours = arrays.error(attn.output(path, folder / "out.safetensors"), want)
    found, entries = errors(able, folder, want), []
    for worker in workers:
        worker.say(drop=1)
    for worker, name, note in able:
        if name not in found or not np.isfinite(found[name]) or None in theirs[name]:
            print(f"  {case[1]} {kind}: {name} left out: its result is not finite, or it failed", file=sys.stderr)
            continue
        entries.append({"case": case[1], "type": kind, "peer": name, "version": worker.about["version"],
                        "seconds_median": statistics.median(theirs[name]), "error": found[name], "note": note,
                        "ratio": paired(theirs[name], ours), "seconds_ours": statistics.median(ours), "error_ours": error_ours})
        print("  {case} {type}: {peer} {seconds_median:.3g} s, ours {seconds_ours:.3g} s, ratio {ratio:.2f}, error {error:.1e}, "
              "ours {error_ours:.1e}".format(**entries[-1]), file=sys.stderr)
    return entries


def start(o, threads):
    workers = []
    for word in o.peers.split(","):
        worker = Worker([sys.executable, str(HERE / "worker.py"), MODULES[word], str(threads)])
        if "missing" in worker.about:
            print(f"peers.py: {word} left out: {worker.about['missing']}", file=sys.stderr)
            worker.close()
        else:
            workers.append(worker)
    return workers


def write(path, document):
    temporary = f"{path}.part"
    pathlib.Path(temporary).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


def main(words=None):
    o, others = options(words)
    attn = Attn(o.attn, o.threads, others)
    cases = [("--case", name) for name in o.case] + [("--shape", text) for text in o.shape] or [("--case", name) for name in attn.cases()]
    about = attn.time(("--shape", "1,1,1,1,1"), "f32", 0)
    workers = start(o, about["threads"])
    document = {"machine": about["machine"], "threads": about["threads"], "isa": about["isa"], "precision": about["precision"],
                "attn": about["version"], "entries": []}
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(o.out)), prefix="peers-") as folder:
            for case in cases if workers else []:
                for kind in o.type.split(","):
                    document["entries"] += compare(attn, workers, case, kind, o, pathlib.Path(folder))
    finally:
        for worker in workers:
            worker.close()
    write(o.out, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
