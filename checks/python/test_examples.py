"""The examples run, small, and end with what they verified; their own verification finds what is wrong."""
import pathlib
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"
SMALL = {"tokens_per_second.py": (["--context", "96", "--tokens", "4", "--rounds", "1"], "verified: all generate the same 5 tokens"),
         "larger_than_memory.py": (["--size", "128"], "attention over the file: verified"),
         "two_machines.py": (["--keys", "3000"], "merged from two machines: verified")}


def run(name, *arguments):
    return subprocess.run([sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", SMALL)
def test_example(name):
    arguments, wanted = SMALL[name]
    found = run(name, *arguments)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].startswith(wanted), found.stdout


def test_all_are_run():
    programs = {path.name for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text()}
    assert programs == set(SMALL)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}`" in listed for name in programs)


def test_what_must_not_be_copied_is_too_large():
    found = run("larger_than_memory.py", "--size", "64")
    assert found.returncode == 2 and "--size" in found.stderr


def test_a_machine_that_dies(monkeypatch):
    """The program ends and does not wait for it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import two_machines
    with pytest.raises(EOFError):
        two_machines.ask([(0, 3), (9, 3)], None, 0)  # no keys from 9 to 3


@pytest.fixture
def exact(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import exact
    return exact


@pytest.mark.parametrize("diagonal", [None, 30])
def test_verification_finds_errors(exact, diagonal, capsys):
    """The reference is one softmax over all keys, however it is cut; a result a few bounds off, or NaN, ends the program."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 16), (2, 5000, 16), (2, 5000, 8)))
    out, bound = exact.attention_and_bound(q, k, v, diagonal)
    scores = q.astype(float).reshape(2, 6, 16) @ k.astype(float).mT / 4
    if diagonal is not None:
        scores[:, np.arange(5000) > np.tile(np.arange(3) + diagonal, 2)[:, None]] = -np.inf
    weights = np.exp(scores)
    np.testing.assert_allclose(out, (weights @ v / weights.sum(-1, keepdims=True)).reshape(4, 3, 8), rtol=1e-12, atol=1e-14)
    assert 0 < bound.min() and bound.max() < 1e-5
    exact.verify("itself", out, out, bound)
    assert "verified" in capsys.readouterr().out
    for wrong in (1.01 * bound[1, 2, 3], np.nan):
        spoilt = out.copy()
        spoilt[1, 2, 3] += wrong
        with pytest.raises(SystemExit, match="WRONG"):
            exact.verify("a spoilt one", spoilt, out, bound)
