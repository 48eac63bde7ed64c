"""bench/peers without any of the peers: the driver and its worker on a peer made of numpy."""
import importlib
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
PEERS = ROOT / "bench" / "peers"

FAKE = '''
import numpy as np
import arrays
NAMES = ["fake", "wrong", "unable"]
VERSION = "3.2.1"
class Peer:
    def __init__(self, which, tensors, name, causal, copies, threads):
        if which == "unable":
            raise NotImplementedError("has no attention\\nat all")
        print("noise on standard output")
        self.arguments, self.which, self.note, self.seen = (tensors, name, causal), which, f"{copies} copies, {threads} threads", []
    def run(self, i):
        self.seen.append(i)
    def result(self):
        assert self.seen == list(range(len(self.seen)))
        out = arrays.attention(*self.arguments)
        return out + (np.nan if self.which == "wrong" else 0)
'''


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(PEERS))
    return importlib.import_module("peers")


@pytest.fixture
def fake(peers, monkeypatch, tmp_path):
    (tmp_path / "fake_peer.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(peers, "MODULES", {"fake": "fake_peer", "gone": "no_such_module"})
    return peers


def test_a_sitting(fake, binary, attn, tmp_path, capfd):
    out = tmp_path / "peers.json"
    args = ["--attn", binary, "--out", str(out), "--peers", "fake,gone", "--shape", "1,4/2,20,120,32,causal=bottom-right", "--case", "rows-2", "--type",
            "f32,bf16", "--seconds", "0", "--threads", "1", "--rounds", "2", "--isa", "scalar", "--html", "report.html"]
    assert fake.main(args) == 0
    found = json.loads(out.read_text())
    assert found["threads"] == 1 and found["isa"] == "scalar" and found["precision"] == "exact" and {p.name for p in tmp_path.iterdir()} == {"fake_peer.py", "peers.json"}
    shown = [(e["case"], e["type"], e["peer"], e["version"]) for e in found["entries"]]
    assert shown == [(c, t, "fake", "3.2.1") for c in ("rows-2", "1,4/2,20,120,32,causal=bottom-right") for t in ("f32", "bf16")]
    for e in found["entries"]:
        assert e["error"] == 0 and 0 < e["error_ours"] < (5e-7 if e["type"] == "f32" else 5e-3) and e["ratio"] > 0 and e["note"].endswith("copies, 1 threads")
    said = capfd.readouterr().err
    assert "gone left out: " in said and "unable left out: has no attention\n" in said and "wrong left out: its result is not finite" in said
    table = attn("bench", "--shape", "1,4/2,20,120,32,causal=bottom-right", "--type", "f32", "--seconds", "0", "--threads", "1", "--isa", "scalar",
                 "--compare", "peers.json").out
    assert "fake" in table and "timed elsewhere" not in table and "%.2f" % found["entries"][2]["ratio"] in table


@pytest.mark.parametrize("peers", ["none", "torch"])
def test_the_script_hands_on_what_is_for_each(peers, binary):
    """--rounds is the peers' alone; with --list nothing is timed, and nothing need be installed."""
    done = subprocess.run([ROOT / "scripts" / "bench.sh", os.path.dirname(binary), peers, "--rounds", "2", "--list", "--rounds=3"], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout.split()[0]) == (0, "", "origin"), done


def test_ratios_are_paired(peers):
    assert peers.paired([1.0, 20.0, 6.0], [1.0, 10.0, 2.0]) == 2.0
    with pytest.raises(ValueError):
        peers.paired([1.0], [1.0, 2.0])


def test_order_turns_around(peers):
    calls = []

    class Attn:
        def time(self, case, kind, seconds):
            calls.append("ours")
            return {"seconds_median": 1.0}

    class Worker:
        def say(self, **request):
            calls.append(request["which"])
            return {"seconds": 2.0}

    ours, theirs = peers.time_rounds(Attn(), [(Worker(), "a", ""), (Worker(), "b", "")], (), "f32", 2, "1")
    assert calls == ["ours", "a", "b", "b", "a", "ours"] and ours == [1.0, 1.0] and theirs == {"a": [2.0, 2.0], "b": [2.0, 2.0]}


@pytest.mark.parametrize("words", [["--peers", "mxnet"], ["--mask", "all-true"], ["--layout=blhd"], ["--rounds", "0"], ["--save", "x"]])
def test_options(peers, words, capsys):
    with pytest.raises(SystemExit) as stop:
        peers.options(["--attn", "attn", "--out", "peers.json", *words])
    assert stop.value.code == 2 and words[0] in capsys.readouterr().err


@pytest.mark.parametrize("causal", [None, "top-left", "bottom-right"])
def test_exact_attention(peers, rng, causal):
    from attention import attention
    q, k, v = rng.standard_normal((2, 4, 5, 8)), rng.standard_normal((2, 2, 9, 8)), rng.standard_normal((2, 2, 9, 8))
    tensors = {name: array.astype(np.float32) for name, array in (("q", q), ("k", k), ("v", v))}
    got = peers.arrays.attention(tensors, "f32", causal)
    want, _, _ = attention(*(tensors[n].astype(float) for n in "qkv"), causal=causal is not None, align=causal or "top-left")
    assert np.abs(got - want).max() < 1e-13


def test_bf16_is_read_as_it_is_written(peers):
    from files import to_bf16, to_f64
    values = to_bf16(np.array([1.0, -2.5, 3e38, 1e-40, np.inf]))
    assert (peers.arrays.to_float64(np.asarray(values), "bf16") == to_f64(values)).all()
