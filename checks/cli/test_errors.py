"""Bad usage and bad input: exit code 2, one message that names the option, file or rule, and no output."""
import os
import resource

import numpy as np
import pytest
from files import npy_bytes, safetensors_bytes, to_bf16, write

USAGE = [
    ([], ["command"]),
    (["walk"], ["walk", "no such command"]),
    (["--nonsense"], ["--nonsense"]),
    (["run"], ["-o"]),
    (["run", "-o", "out.npy"], ["-q"]),
    (["run", "--nonsense"], ["--nonsense"]),
    (["run", "a.safetensors", "b.safetensors", "-o", "out.npy"], ["b.safetensors"]),
    (["run", "a.npy", "-o", "out.npy"], ["a.npy", ".safetensors"]),
    (["run", "a.safetensors", "-o", "out.npy"], ["a.safetensors"]),
    (["check", "--case", "nothing"], ["--case nothing"]),
    (["check", "--case", "random:x"], ["--case random:x"]),
    (["check", "--case", "random:1:"], ["--case random:1:"]),
    (["check", "--seconds", "soon"], ["--seconds soon"]),
    (["check", "--seconds", "-1"], ["--seconds -1"]),
    (["check", "--seed", "1x"], ["--seed 1x"]),
    (["check", "--type", "f8"], ["--type f8"]),
    (["check", "--isa", "mmx", "--seconds", "0"], ["--isa mmx"]),
    (["check", "stray"], []),
    (["bench", "--case", "nothing"], ["--case nothing"]),
    (["bench", "--shape", "1,2,3"], ["--shape 1,2,3"]),
    (["bench", "--shape", "1,2/2,3,4,5,acausal"], ["--shape"]),
    (["bench", "--type", "f32,,f16"], ["--type"]),
    (["bench", "--mask", "some"], ["--mask some"]),
    (["bench", "--layout", "lbhd"], ["--layout lbhd"]),
    (["bench", "--json", "no/such/folder.json"], ["--json no/such/folder.json"]),
    (["bench", "--html", "no/such/folder.html"], ["--html no/such/folder.html"]),
    (["bench", "--html", "."], ["--html .", "regular file"]),
    (["bench", "--compare", "no-such.json"], ["--compare no-such.json"]),
    (["bench", "--compare", "."], ["--compare ."]),
    (["bench", "--compare", "peers.json", "--mask", "all-true"], ["--compare peers.json", "mask"]),
    (["bench", "--compare", "peers.json", "--layout", "blhd"], ["--compare peers.json", "bhld"]),
    (["bench", "--save", "a.safetensors"], ["--save a.safetensors", "one --case"]),
    (["bench", "--save", "a.safetensors", "--case", "P4", "--type", "f32,f16"], ["one --type"]),
    (["bench", "--save", "a.safetensors", "--case", "P4", "--type", "f32", "--html", "a.html"], ["--save a.safetensors", "--html"]),
    (["bench", "--case", "P4", "--json", "a.out", "--html", "a.out"], ["--html a.out", "--json"]),
    (["bench", "--case", "P4", "--json", "a.out", "--html", "./a.out"], ["--html ./a.out", "--json"]),
    (["run", "all.safetensors", "--causal", "bottom-right", "-o", "out.npy"], ["write --causal=bottom-right"]),
    (["bench", "--save", "a.npy", "--case", "rows-2", "--type", "f32"], ["--save a.npy", ".safetensors"]),
    (["bench", "--save", "no/such/a.safetensors", "--case", "rows-2", "--type", "f32"], ["--save no/such/a.safetensors"]),
    (["bench", "--save", "a.safetensors", "--case", "sinks", "--type", "f32"], ["--save a.safetensors", "sinks"]),
    (["bench", "--device", "reference", "--case", "one", "--seconds", "0", "--json", "-"], ["ceiling"]),
    (["bench", "--shape", "1,3/2,3,4,5", "--seconds", "0"], ["heads_q", "multiple"]),
    (["info", "--isa", "mmx"], ["--isa mmx"]),
    (["info", "--device", "abacus"], ["--device abacus"]),
    (["info", "--precision", "half"], ["--precision half", "exact or fast"]),
    (["info", "--threads", "-1"], ["--threads -1"]),
    (["info", "--threads", "1025"], ["--threads 1025"]),
    (["info", "--threads", "two"], ["--threads two"]),
    (["info", "--passes", "3"], ["--passes 3"]),
    (["info", "--chunk", "-5"], ["--chunk -5"]),
    (["info", "--chunk", "9999999999999999999"], ["--chunk"]),
    (["explain"], ["--shape"]),
    (["explain", "1,2,3"], ["1,2,3"]),
    (["explain", "1,2,3,4,5,6"], ["1,2,3,4,5,6"]),
    (["explain", "1,2,3,4,5/0"], []),
    (["explain", "1,2,3,4,5", "--case", "D2"], ["one shape or case"]),
    (["explain", "--case", "nothing"], ["nothing"]),
    (["explain", "1,3/2,3,4,5"], ["heads_q"]),
    (["explain", "9223372036854775807,9223372036854775807,9223372036854775807,3,4", "--mask", "f32"], ["overflow"]),
    (["explain", "1,2,3,4,5", "--mask", "f64"], ["--mask f64"]),
]


@pytest.mark.parametrize("args, words", USAGE, ids=[" ".join(a) or "nothing" for a, _ in USAGE])
def test_usage(fails, args, words):
    fails(*args, words=words)


OPTIONS = [
    (["--causal=left"], ["--causal", "top-left or bottom-right"]),
    (["--align", "middle"], ["--align middle"]),
    (["--offset", "1.5"], ["--offset 1.5"]),
    (["--offset", "9223372036854775808"], ["--offset"]),
    (["--window", "3"], ["--window 3"]),
    (["--window", "3,x"], ["--window 3,x"]),
    (["--window", "-2,0"], ["--window -2,0"]),
    (["--scale", "big"], ["--scale big"]),
    (["--scale", "nan"], ["scale: must be finite"]),
    (["--scale", "1e300"], ["scale: must be finite"]),
    (["--softcap", "-1"], ["softcap"]),
    (["--softcap", "inf"], ["softcap"]),
    (["--layout", "bdlh"], ["--layout bdlh"]),
    (["--type-out", "f64"], ["--type-out f64"]),
    (["--device", "gpu"], ["--device gpu"]),
    (["--device", "cuda:x"], ["--device cuda:x"]),
    (["--device", "cuda:"], ["--device cuda:"]),
    (["--device", "cuda:-1"], ["--device cuda:-1"]),
    (["--device", "cuda:4294967296"], ["--device cuda:4294967296"]),
    (["--device", "cpu:1"], ["index: the device has no unit of this number"]),
    (["--device", "reference:2"], ["index: the device has no unit of this number"]),
    (["--isa", "mmx"], ["--isa mmx", "isa: unknown"]),
    (["--lse", "out.npy"], ["--lse out.npy"]),
    (["--lse", "lse.txt"], ["--lse lse.txt", ".npy"]),
    (["--lse", "no/lse.npy"], ["--lse no/lse.npy"]),
    (["--mask", "absent.npy"], ["--mask absent.npy", "No such file"]),
    (["--sinks", "absent.safetensors"], ["--sinks absent.safetensors"]),
]


@pytest.mark.parametrize("args, words", OPTIONS, ids=[" ".join(a) for a, _ in OPTIONS])
def test_bad_options(fails, qkv, args, words):
    files, _ = qkv()
    fails("run", *files, "-o", "out.npy", *args, words=words)


OUTPUTS = [("out.txt", ".npy"), (".npy", ".npy"), ("out", ".npy"), ("no/such/out.npy", "folder"), ("q.npy/out.npy", "folder"), ("dir.npy", "regular")]


@pytest.mark.parametrize("path, word", OUTPUTS)
def test_bad_outputs(fails, qkv, tmp_path, path, word):
    files, _ = qkv()
    (tmp_path / "dir.npy").mkdir()
    fails("run", *files, "-o", path, words=["-o " + path, word])


def test_a_full_disk_leaves_nothing(attn, qkv, tmp_path):
    files, _ = qkv(batch=4, heads=(8, 8), lens=(40, 4))
    before = sorted(os.listdir(tmp_path))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    # Python ignores SIGXFSZ, and so does the child then: writing fails as it does on a full disk.
    result = attn("run", *files, "-o", "out.npy", "--lse", "lse.npy", code=2, preexec_fn=limit, restore_signals=False)
    assert "-o out.npy" in result.err and sorted(os.listdir(tmp_path)) == before


def test_standard_output_that_is_full(binary):
    import subprocess

    with open("/dev/full", "w") as full:
        done = subprocess.run([binary, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "standard output" in done.stderr


# ---- tensors that do not fit ----
def replaced(tmp_path, qkv, name, array):
    files, _ = qkv()
    write(tmp_path / (name + ".npy"), array)
    return files


f32 = np.float32
SHAPES = [
    ("q", np.zeros((5,), f32), ["-q", "q.npy", "rank 1"]),
    ("q", np.zeros((1, 2, 4, 5, 16), f32), ["-q", "rank 5"]),
    ("q", np.zeros((), f32), ["-q", "rank 0"]),
    ("q", np.zeros((2, 3, 5, 16), f32), ["heads_q", "multiple of heads_kv"]),
    ("q", np.zeros((2, 0, 5, 16), f32), ["heads_q"]),
    ("k", np.zeros((2, 0, 7, 16), f32), ["-v", "heads"]),
    ("k", np.zeros((1, 2, 7, 16), f32), ["-k", "batch is 1", "2"]),
    ("k", np.zeros((2, 2, 7, 17), f32), ["-k", "dim is 17", "16"]),
    ("v", np.zeros((1, 2, 7, 16), f32), ["-v", "batch is 1"]),
    ("v", np.zeros((2, 4, 7, 16), f32), ["-v", "heads is 4"]),
    ("v", np.zeros((2, 2, 8, 16), f32), ["-v", "length is 8"]),
    ("v", np.zeros((2, 2, 7, 0), f32), ["dim_v"]),
    ("q", np.zeros((2, 4, 5, 16), np.float64), ["-q", "f64", "must be f32, f16 or bf16"]),
    ("k", np.zeros((2, 2, 7, 16), np.int32), ["-k", "i32"]),
    ("v", np.zeros((2, 2, 7, 16), bool), ["-v", "bool"]),
]


@pytest.mark.parametrize("name, array, words", SHAPES)
def test_shapes_of_q_k_v(fails, tmp_path, qkv, name, array, words):
    fails("run", *replaced(tmp_path, qkv, name, array), "-o", "out.npy", words=words)


EXTRAS = [
    ("mask", np.ones((5, 8), bool), ["--mask", "axis 1 is 8", "len_kv", "7"]),
    ("mask", np.ones((3, 4, 5, 7), bool), ["--mask", "axis 0 is 3", "batch"]),
    ("mask", np.ones((2, 5, 7), bool), ["--mask", "axis 0 is 2", "heads_q"]),
    ("mask", np.ones((4, 7), bool), ["--mask", "axis 0 is 4", "len_q"]),
    ("mask", np.ones((0,), bool), ["--mask", "axis 0 is 0"]),
    ("mask", np.ones((1, 1, 1, 5, 7), bool), ["--mask", "rank 5"]),
    ("mask", np.ones((5, 7), np.int32), ["--mask", "i32"]),
    ("sinks", np.ones(2, f32), ["--sinks", "(2,)", "heads_q", "4"]),
    ("sinks", np.ones((1, 4), f32), ["--sinks", "(1, 4)"]),
    ("sinks", np.ones(4, np.int64), ["--sinks", "i64"]),
    ("slopes", np.ones(5, f32), ["--slopes", "(5,)"]),
    ("slopes", np.ones(4, bool), ["--slopes", "bool"]),
    ("len-q", np.array([5], np.int32), ["--len-q", "(1,)", "batch"]),
    ("len-q", np.array([5, 6], np.int32), ["--len-q", "entry 1 is 6", "5"]),
    ("len-q", np.array([5.0, 5.0], f32), ["--len-q", "f32"]),
    ("len-kv", np.array([-1, 7], np.int64), ["--len-kv", "entry 0 is -1"]),
    ("len-kv", np.array([7, 1 << 40], np.int64), ["--len-kv", "entry 1", "32 bits"]),
    ("len-kv", np.array([8, 7], np.int32), ["--len-kv", "entry 0 is 8", "7"]),
]


@pytest.mark.parametrize("name, array, words", EXTRAS)
def test_shapes_of_the_others(fails, tmp_path, qkv, name, array, words):
    files, _ = qkv()
    fails("run", *files, "-o", "out.npy", "--" + name, write(tmp_path / "extra.npy", array), words=[*words, "extra.npy"])


# ---- files that are none ----
def test_files_of_the_wrong_kind(fails, tmp_path, qkv):
    files, _ = qkv()
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "text.txt").write_text("no tensor")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    for path, word in (("folder.npy", "regular file"), ("pipe.npy", "regular file"), ("text.txt", ".npy or .safetensors"), ("absent.npy", "No such file"),
                       ("empty.npy", "too early"), ("empty.safetensors", "too early"), ("", "must end in")):
        fails("run", "-q", path, *files[2:], "-o", "out.npy", words=["-q " + path, word])


def test_safetensors_without_the_tensor(fails, tmp_path, qkv):
    _, (q, k, v) = qkv()
    tensors = {"q": q.astype(f32), "k": k.astype(f32)}
    (tmp_path / "some.safetensors").write_bytes(safetensors_bytes(tensors))
    fails("run", "some.safetensors", "-o", "out.npy", words=["some.safetensors", "'v'"])
    fails("run", "-q", "q.npy", "-k", "k.npy", "-v", "some.safetensors", "-o", "out.npy", words=["-v some.safetensors", "'v'"])


@pytest.mark.parametrize("metadata, word", [({"causal": "yes"}, "causal"), ({"scale": "x"}, "scale"), ({"layout": "dlhb"}, "layout"),
                                            ({"window": "1"}, "window"), ({"softcap": ""}, "softcap"), ({"offset": "1.0"}, "offset")])
def test_bad_metadata(fails, tmp_path, qkv, metadata, word):
    _, arrays = qkv()
    tensors = dict(zip("qkv", (a.astype(f32) for a in arrays)))
    (tmp_path / "all.safetensors").write_bytes(safetensors_bytes(tensors, metadata))
    fails("run", "all.safetensors", "-o", "out.npy", words=["all.safetensors", "__metadata__", word])


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("fortran", [False, True])
def test_versions_and_orders_of_npy(attn, qkv, tmp_path, version, fortran):
    files, (q, _, _) = qkv()
    attn("run", *files, "-o", "plain.npy")
    (tmp_path / "q.npy").write_bytes(npy_bytes(q.astype(f32), version=version, fortran=fortran))
    attn("run", *files, "-o", "out.npy")
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "plain.npy").read_bytes()


@pytest.mark.parametrize("descr", ["|V2", "<V2"])
def test_both_spellings_of_bf16(attn, qkv, tmp_path, descr):
    files, (q, _, _) = qkv(types=("bf16",) * 3)
    attn("run", *files, "-o", "plain.npy")
    (tmp_path / "q.npy").write_bytes(npy_bytes(to_bf16(q), descr=descr))
    attn("run", *files, "-o", "out.npy")
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "plain.npy").read_bytes()
