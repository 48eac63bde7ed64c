"""attn run: every type, every option, against attention in numpy float64."""
import itertools
import json

import numpy as np
import pytest
from attention import assert_close, attention
from files import Bf16, read, read_safetensors, safetensors_bytes, to_f64, to_type, write

TYPES = ("f32", "f16", "bf16")


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
@pytest.mark.parametrize("name", TYPES)
def test_types_and_formats(attn, qkv, tmp_path, name, suffix):
    args, (q, k, v) = qkv(types=(name,) * 3, suffix=suffix)
    out, lse = tmp_path / ("out" + suffix), tmp_path / ("lse" + suffix)
    attn("run", *args, "-o", out, "--lse", lse)
    want, want_lse, bound = attention(q, k, v)
    got = read(out)
    assert isinstance(got, Bf16) == (name == "bf16") and got.shape == want.shape
    assert name == "bf16" or got.dtype == {"f32": np.float32, "f16": np.float16}[name]
    assert_close(to_f64(got), want, bound, name)
    got = read(lse)
    assert got.dtype == np.float32 and got.shape == want_lse.shape
    np.testing.assert_allclose(got, want_lse, rtol=2e-6, atol=2e-6)
    assert {p.name for p in tmp_path.iterdir()} == {"q" + suffix, "k" + suffix, "v" + suffix, "out" + suffix, "lse" + suffix}
    if suffix == ".safetensors":
        assert list(read_safetensors(out)) == ["out"] and list(read_safetensors(lse)) == ["lse"]


@pytest.mark.parametrize("q, k, v, out", [t for t in itertools.product(TYPES, repeat=4) if len(set(t)) > 1])
def test_type_mixes(attn, qkv, tmp_path, q, k, v, out):
    args, arrays = qkv(types=(q, k, v))
    attn("run", *args, "-o", "out.npy", "--type-out", out)
    want, _, bound = attention(*arrays)
    got = read(tmp_path / "out.npy")
    assert isinstance(got, Bf16) == (out == "bf16")
    assert_close(to_f64(got), want, bound, out)


OPTIONS = [
    (["--causal"], dict(causal=True)),
    (["--causal=top-left"], dict(causal=True)),
    (["--causal=bottom-right"], dict(causal=True, align="bottom-right")),
    (["--causal", "--align", "bottom-right"], dict(causal=True, align="bottom-right")),
    (["--causal", "--offset", "3"], dict(causal=True, offset=3)),
    (["--causal", "--offset=-2"], dict(causal=True, offset=-2)),
    (["--causal=bottom-right", "--offset", "-1"], dict(causal=True, align="bottom-right", offset=-1)),
    (["--window", "2,1"], dict(window=(2, 1))),
    (["--window", "-1,0"], dict(causal=True)),
    (["--window=0,-1"], dict(window=(0, -1))),
    (["--window", "1,1", "--align", "bottom-right"], dict(window=(1, 1), align="bottom-right")),
    (["--window", "2,5", "--causal"], dict(window=(2, 0))),
    (["--scale", "0.125"], dict(scale=0.125)),
    (["--scale", "0"], dict(scale=0)),
    (["--scale", "-0.5"], dict(scale=-0.5)),
    (["--softcap", "1.5"], dict(softcap=1.5)),
    (["--softcap", "0"], dict()),
    (["--layout", "bhld"], dict()),
    (["--threads", "1"], dict()),
    (["--threads", "3", "--chunk", "2", "--passes", "2"], dict()),
    (["--passes", "1"], dict()),
    (["--isa", "scalar"], dict()),
    (["--device", "cpu"], dict()),
    (["--device", "reference"], dict()),
]


@pytest.mark.parametrize("args, meaning", OPTIONS, ids=[" ".join(a) for a, _ in OPTIONS])
def test_options(attn, qkv, tmp_path, args, meaning):
    files, (q, k, v) = qkv()
    attn("run", *files, "-o", "out.npy", *args)
    want, _, bound = attention(q, k, v, **meaning)
    assert_close(to_f64(read(tmp_path / "out.npy")), want, bound, "f32")


MASKS = [(2, 4, 5, 7), (1, 4, 5, 7), (2, 1, 1, 7), (5, 7), (7,), (1,), (), (4, 1, 1), (5, 1)]


@pytest.mark.parametrize("kind", ["bool", "u8", "f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(attn, qkv, tmp_path, rng, kind, shape):
    files, (q, k, v) = qkv()
    if kind in ("bool", "u8"):
        meaning = np.asarray(rng.random(shape) < 0.7)
        stored = meaning if kind == "bool" else np.asarray(meaning.astype(np.uint8) * 3)
    else:
        stored = to_type(np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape)), kind)
        meaning = to_f64(stored)
    attn("run", *files, "-o", "out.npy", "--mask", write(tmp_path / "mask.npy", stored))
    want, _, bound = attention(q, k, v, mask=meaning)
    assert_close(to_f64(read(tmp_path / "out.npy")), want, bound, "f32")


def test_mask_f64_keeps_finite_values_finite(attn, qkv, tmp_path):
    files, (q, k, v) = qkv()
    attn("run", *files, "-o", "out.npy", "--lse", "lse.npy", "--mask", write(tmp_path / "mask.npy", np.full((1,), -1e300)))
    assert np.isfinite(read(tmp_path / "lse.npy")).all()


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
def test_sinks_and_slopes(attn, qkv, tmp_path, rng, kind):
    files, (q, k, v) = qkv()
    sinks, slopes = to_type(rng.standard_normal(4), kind), to_type(rng.random(4), kind)
    args = ["--sinks", write(tmp_path / "sinks.npy", sinks), "--slopes", write(tmp_path / "slopes.safetensors", slopes)]
    attn("run", *files, "-o", "out.npy", *args, "--causal=bottom-right")
    want, _, bound = attention(q, k, v, sinks=to_f64(sinks), slopes=to_f64(slopes), causal=True, align="bottom-right")
    assert_close(to_f64(read(tmp_path / "out.npy")), want, bound, "f32")


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_lengths(attn, qkv, tmp_path, kind):
    files, (q, k, v) = qkv()
    len_q, len_kv = np.array([3, 0], kind), np.array([7, 2], kind)
    args = ["--len-q", write(tmp_path / "len_q.npy", len_q), "--len-kv", write(tmp_path / "len_kv.npy", len_kv)]
    attn("run", *files, "-o", "out.npy", "--lse", "lse.npy", *args, "--causal=bottom-right")
    want, want_lse, bound = attention(q, k, v, len_q=len_q, len_kv=len_kv, causal=True, align="bottom-right")
    got = read(tmp_path / "out.npy")
    assert_close(to_f64(got), want, bound, "f32")
    assert (got[0, :, 3:] == 0).all() and (got[1] == 0).all()
    np.testing.assert_allclose(read(tmp_path / "lse.npy"), want_lse, rtol=2e-6, atol=2e-6)


def test_layout_blhd(attn, qkv, tmp_path, rng):
    _, arrays = qkv()
    for name, array in zip("qkv", arrays):
        write(tmp_path / (name + ".npy"), np.ascontiguousarray(array.transpose(0, 2, 1, 3)).astype(np.float32))
    mask = rng.random((4, 5, 7)) < 0.7
    write(tmp_path / "mask.npy", mask)
    attn("run", "-q", "q.npy", "-k", "k.npy", "-v", "v.npy", "-o", "out.npy", "--lse", "lse.npy", "--mask", "mask.npy", "--layout", "blhd")
    want, want_lse, bound = attention(*arrays, mask=mask)
    assert_close(to_f64(read(tmp_path / "out.npy")).transpose(0, 2, 1, 3), want, bound, "f32")
    np.testing.assert_allclose(read(tmp_path / "lse.npy"), want_lse, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("layout", ["bhld", "blhd"])
@pytest.mark.parametrize("rank", [2, 3])
def test_ranks(attn, tmp_path, rng, rank, layout):
    heads = 4 if rank == 3 else 1
    q, k, v = (rng.standard_normal((1, h, n, 8)).astype(np.float32) for h, n in ((heads, 5), (heads // 2 or 1, 6), (heads // 2 or 1, 6)))
    for name, array in (("q", q), ("k", k), ("v", v)):
        array = array[0] if rank == 3 else array[0, 0]
        write(tmp_path / (name + ".npy"), np.ascontiguousarray(array.transpose(1, 0, 2)) if (rank, layout) == (3, "blhd") else array)
    attn("run", "-q", "q.npy", "-k", "k.npy", "-v", "v.npy", "-o", "out.npy", "--lse", "lse.npy", "--layout", layout)
    want, want_lse, bound = attention(*(a.astype(np.float64) for a in (q, k, v)))
    got = to_f64(read(tmp_path / "out.npy"))
    assert got.ndim == rank
    if (rank, layout) == (3, "blhd"):
        got = got.transpose(1, 0, 2)
    assert_close(got.reshape(want.shape), want, bound, "f32")
    assert read(tmp_path / "lse.npy").shape == want_lse.shape[4 - rank :]


@pytest.mark.parametrize("batch, lens", [(0, (5, 7)), (2, (0, 7)), (2, (5, 0))])
def test_empty(attn, qkv, tmp_path, batch, lens):
    args, (q, k, v) = qkv(batch=batch, lens=lens)
    attn("run", *args, "-o", "out.npy", "--lse", "lse.npy", "--verify")
    got, lse = read(tmp_path / "out.npy"), read(tmp_path / "lse.npy")
    assert got.shape == q.shape and (got == 0).all() and (lse == -np.inf).all()


def test_dim_v_differs(attn, qkv, tmp_path):
    args, arrays = qkv(dims=(16, 3))
    attn("run", *args, "-o", "out.safetensors")
    want, _, bound = attention(*arrays)
    assert_close(to_f64(read(tmp_path / "out.safetensors")), want, bound, "f32")


# ---- one file with all ----
def all_in_one(tmp_path, qkv, metadata=None, **more):
    _, arrays = qkv()
    tensors = dict(zip("qkv", (a.astype(np.float32) for a in arrays)))
    (tmp_path / "all.safetensors").write_bytes(safetensors_bytes({**tensors, **more}, metadata))
    return arrays


def test_one_file(attn, qkv, tmp_path, rng):
    mask, sinks, slopes = rng.random((5, 7)) < 0.8, rng.standard_normal(4).astype(np.float32), rng.random(4).astype(np.float32)
    len_q, len_kv = np.array([5, 4], np.int64), np.array([6, 7], np.int32)
    extra = np.zeros(3, np.uint8)  # of no concern
    arrays = all_in_one(tmp_path, qkv, None, mask=mask, sinks=sinks, slopes=slopes, len_q=len_q, len_kv=len_kv, extra=extra)
    attn("run", "all.safetensors", "-o", "out.npy")
    want, _, bound = attention(*arrays, mask=mask, sinks=sinks, slopes=slopes, len_q=len_q, len_kv=len_kv)
    assert_close(to_f64(read(tmp_path / "out.npy")), want, bound, "f32")


METADATA = [
    (dict(causal="true"), dict(causal=True)),
    (dict(causal="false"), dict()),
    (dict(causal="bottom-right", format="pt"), dict(causal=True, align="bottom-right")),
    (dict(window="2,0", offset="1"), dict(window=(2, 0), offset=1)),
    (dict(window="1,1", align="bottom-right"), dict(window=(1, 1), align="bottom-right")),
    (dict(scale="0.3", softcap="2"), dict(scale=0.3, softcap=2.0)),
    (dict(layout="bhld"), dict()),
]


@pytest.mark.parametrize("metadata, meaning", METADATA, ids=[str(m) for m, _ in METADATA])
def test_metadata(attn, qkv, tmp_path, metadata, meaning):
    arrays = all_in_one(tmp_path, qkv, metadata)
    attn("run", "all.safetensors", "-o", "out.npy")
    want, _, bound = attention(*arrays, **meaning)
    assert_close(to_f64(read(tmp_path / "out.npy")), want, bound, "f32")


def test_options_win_over_metadata_and_tensors(attn, qkv, tmp_path, rng):
    q, k, v = all_in_one(tmp_path, qkv, dict(causal="bottom-right", scale="3", offset="2", softcap="1"), sinks=np.full(4, 9, np.float32))
    other = rng.standard_normal(v.shape).astype(np.float32)
    files = ["-v", write(tmp_path / "v.npy", other), "--sinks", write(tmp_path / "sinks.npy", np.ones(4, np.float32))]
    attn("run", "all.safetensors", "-o", "out.npy", *files, "--scale", "0.5", "--causal=top-left", "--softcap", "0")
    want, _, bound = attention(q, k, other.astype(np.float64), scale=0.5, causal=True, offset=2, sinks=np.ones(4))
    assert_close(to_f64(read(tmp_path / "out.npy")), want, bound, "f32")


def test_single_tensor_files_by_name_or_alone(attn, qkv, tmp_path):
    args, arrays = qkv()
    both = {"other": np.zeros(3, np.float32), "k": arrays[1].astype(np.float32)}
    (tmp_path / "two.safetensors").write_bytes(safetensors_bytes(both))
    (tmp_path / "alone.safetensors").write_bytes(safetensors_bytes({"anything": arrays[2].astype(np.float32)}))
    attn("run", "-q", "q.npy", "-k", "two.safetensors", "-v", "alone.safetensors", "-o", "out.npy")
    want, _, bound = attention(*arrays)
    assert_close(to_f64(read(tmp_path / "out.npy")), want, bound, "f32")


def test_output_replaces_a_file_and_follows_the_umask(attn, qkv, tmp_path):
    args, _ = qkv()
    (tmp_path / "out.npy").write_text("old")
    attn("run", *args, "-o", "out.npy", umask=0o027)
    assert read(tmp_path / "out.npy").shape == (2, 4, 5, 16)
    assert (tmp_path / "out.npy").stat().st_mode & 0o777 == 0o640


# ---- verify, explain, json ----
def test_verify_and_explain_in_words(attn, qkv):
    args, _ = qkv(types=("bf16",) * 3)
    result = attn("run", *args, "-o", "out.npy", "--lse", "lse.npy", "--verify", "--explain")
    for text in ("verified 40 of 40 rows", "all 640 elements are within the bound", "worst element out[", "worst element lse[", "error/bound",
                 "correctly rounded:", "kernel ", "reason "):
        assert text in result.out, result


def test_verify_samples_what_is_large(attn, qkv):
    args, _ = qkv(batch=1, heads=(8, 8), lens=(700, 3000), dims=(64, 128))
    verify = json.loads(attn("run", *args, "-o", "out.npy", "--verify", "--json").out)["verify"]
    assert verify["passed"] is True and verify["rows"] == 5600 and 16 <= verify["rows_checked"] < 5600
    assert verify["elements"] == verify["rows_checked"] * 128
    assert "verified %d of 5600 rows" % verify["rows_checked"] in attn("run", *args, "-o", "out.npy", "--verify").out


def test_json(attn, qkv):
    args, _ = qkv(types=("f16",) * 3)
    report = json.loads(attn("run", *args, "-o", "out.npy", "--lse", "lse.npy", "--verify", "--explain", "--json", "--causal").out)
    assert set(report) == {"command", "version", "device", "isa", "precision", "out", "lse", "problem", "seconds", "verify", "explain"}
    problem = report["problem"]
    assert (problem["type_q"], problem["heads_kv"], problem["len_kv"], problem["right"], problem["left"]) == ("f16", 2, 7, 0, -1)
    verify = report["verify"]
    assert set(verify) == {"passed", "rows", "rows_checked", "elements", "mismatches", "worst", "correctly_rounded", "lse_mismatches", "lse_worst"}
    assert verify["passed"] is True and verify["mismatches"] == 0 and verify["correctly_rounded"] >= 0.99
    worst = verify["worst"]
    assert set(worst) == {"index", "got", "want", "error", "bound", "ratio"} and len(worst["index"]) == 4
    assert worst["ratio"] <= 1 and worst["ratio"] == pytest.approx(worst["error"] / worst["bound"])
    assert len(verify["lse_worst"]["index"]) == 3
    assert report["explain"]["kernel"] and report["explain"]["reason"]


def test_verify_reports_a_nan_that_belongs_there(attn, tmp_path):
    q, k, v = (np.ones((1, 1, n, 4), np.float32) for n in (2, 3, 3))
    q[0, 0, 1, 0] = np.nan
    for name, array in zip("qkv", (q, k, v)):
        write(tmp_path / (name + ".npy"), array)
    args = ["-q", "q.npy", "-k", "k.npy", "-v", "v.npy", "-o", "out.npy", "--lse", "lse.npy", "--verify", "--json"]
    verify = json.loads(attn("run", *args).out)["verify"]
    assert verify["passed"] is True
    out = read(tmp_path / "out.npy")
    assert np.isnan(out[0, 0, 1]).all() and (out[0, 0, 0] == 1).all()
