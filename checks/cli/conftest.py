"""The command under test: ATTN_BIN, or ATTN_COMMAND, in the environment."""
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import files  # noqa: E402


@pytest.fixture(scope="session")
def binary():
    path = os.environ.get("ATTN_BIN") or os.environ.get("ATTN_COMMAND")
    assert path and os.access(path, os.X_OK), "ATTN_BIN must name the command attn"
    return os.path.abspath(path)


class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __repr__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@pytest.fixture
def attn(binary, tmp_path):
    """attn("run", "-q", path, ..., code=0) runs the command in a folder of its own and checks the exit code."""

    def call(*args, code=0, timeout=300, **more):
        done = subprocess.run([binary, *map(str, args)], cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=timeout, **more)
        result = Result(done)
        assert "Sanitizer" not in result.err and "runtime error" not in result.err, result
        assert result.code == code, result
        return result

    return call


@pytest.fixture
def fails(attn, tmp_path):
    """A call that must end with exit code 2, say each of `words`, and write nothing."""

    def call(*args, words=()):
        before = sorted(p.name for p in tmp_path.iterdir())
        result = attn(*args, code=2)
        assert result.out == "", result
        assert result.err.startswith("attn"), result
        for word in words:
            assert word in result.err, (word, result)
        assert sorted(p.name for p in tmp_path.iterdir()) == before, result
        return result

    return call


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def qkv(tmp_path, rng):
    """Writes q, k, v of small shapes as .npy of a type; returns the arguments that name them and the arrays as float64."""

    def make(batch=2, heads=(4, 2), lens=(5, 7), dims=(16, 16), types=("f32", "f32", "f32"), suffix=".npy"):
        shapes = [(batch, heads[0], lens[0], dims[0]), (batch, heads[1], lens[1], dims[0]), (batch, heads[1], lens[1], dims[1])]
        arrays = [files.to_type(rng.standard_normal(shape), name) for shape, name in zip(shapes, types)]
        args = []
        for name, array in zip("qkv", arrays):
            args += ["-" + name, files.write(tmp_path / (name + suffix), array)]
        return args, [files.to_f64(a) for a in arrays]

    return make
