"""What the command says about a library that computes something else: exit code 1, the element, and the command that repeats it."""
import json
import math
import os
import pathlib
import shlex
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.fixture(scope="session")
def spoiler(tmp_path_factory):
    if not COMPILER:
        pytest.skip("no C compiler to build spoil.c with")
    path = tmp_path_factory.mktemp("spoil") / "spoil.so"
    include = HERE.parent.parent / "include"
    subprocess.run([*shlex.split(COMPILER), "-shared", "-fPIC", "-I", include, HERE / "spoil.c", "-o", path, "-ldl"], check=True)
    return path


@pytest.fixture
def spoiled(attn, spoiler):
    def call(how, *args, code=1):
        asan = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        return attn(*args, code=code, env={**os.environ, "LD_PRELOAD": str(spoiler), "SPOIL": how, "ASAN_OPTIONS": asan})

    return call


def test_run(spoiled, qkv, tmp_path):
    args, _ = qkv()
    result = spoiled("value", "run", *args, "-o", "out.npy", "--verify")
    assert "MISMATCH: 1 of 640 elements" in result.out and "worst element out[0, 0, 0, 0]" in result.out
    assert (tmp_path / "out.npy").exists()
    verify = json.loads(spoiled("value", "run", *args, "-o", "out.npy", "--verify", "--json").out)["verify"]
    assert verify["passed"] is False and verify["mismatches"] == 1 and verify["worst"]["index"] == [0, 0, 0, 0]
    assert verify["worst"]["ratio"] > 1000 and verify["worst"]["error"] == pytest.approx(1, abs=1e-5)


def test_run_with_a_nan(spoiled, qkv):
    args, _ = qkv()
    worst = json.loads(spoiled("nan", "run", *args, "-o", "out.npy", "--verify", "--json").out)["verify"]["worst"]
    assert worst["got"] == "nan" and math.isfinite(worst["want"]) and worst["ratio"] == "inf"


def test_run_with_a_wrong_lse(spoiled, qkv):
    args, _ = qkv()
    verify = json.loads(spoiled("lse", "run", *args, "-o", "out.npy", "--lse", "lse.npy", "--verify", "--json").out)["verify"]
    assert verify["passed"] is False and verify["mismatches"] == 0 and verify["lse_mismatches"] == 1
    assert verify["lse_worst"]["index"] == [0, 0, 0]


def repeats(spoiled, attn, how, result):
    """The command that the report names fails in the same way, and passes with the library as it is."""
    (line,) = [text for text in result.out.splitlines() if text.startswith("repeat with: ")]
    words = line.removeprefix("repeat with: ").split()
    assert words[:2] == ["attn", "check"]
    again = spoiled(how, *words[1:])
    worst = [text for text in result.out.splitlines() if text.startswith("worst element")]
    assert worst == [text for text in again.out.splitlines() if text.startswith("worst element")]
    return words[1:]


@pytest.mark.parametrize("options", [[], ["--threads", "1", "--passes", "2", "--chunk", "64", "--isa", "scalar"]])
def test_check_named(spoiled, attn, options):
    result = spoiled("value", "check", "--case", "origin.small", "--type", "f32", *options)
    assert "MISMATCH" in result.out and result.out.endswith("0 passed, 1 failed\n")
    attn(*repeats(spoiled, attn, "value", result))


def test_check_random(spoiled, attn):
    result = spoiled("value", "check", "--case", "random:3:4", "--type", "f32")
    assert result.out.endswith("0 passed, 1 failed\n")
    attn(*repeats(spoiled, attn, "value", result))


@pytest.mark.parametrize("how", ["stray", "behind"])
def test_check_sees_stray_writes(spoiled, how):
    result = spoiled(how, "check", "--case", "rows-65", "--type", "f32")
    assert "1 bytes around the outputs or the workspace were written to" in result.out and result.out.endswith("0 passed, 1 failed\n")


def test_check_reports_a_library_error(spoiled):
    assert "FAILED: memory:" in spoiled("fail", "check", "--case", "rows-65", "--type", "f32").out


def test_check_json(spoiled):
    report = json.loads(spoiled("value", "check", "--case", "rows-65", "--type", "f32", "--json").out)
    assert (report["passed"], report["failed"]) == (0, 1)
    (failure,) = report["failures"]
    assert failure["case"] == "rows-65" and failure["passed"] is False and failure["command"].startswith("attn check --type f32 --seed ")
    assert failure["verify"]["mismatches"] == 1


def test_check_goes_on_after_a_failure(spoiled):
    result = spoiled("value", "check", "--case", "random:5", "--seconds", "1", "--type", "f32")
    passed, failed = (int(word) for word in result.out.splitlines()[-1].replace(",", "").split()[::2])
    assert failed > 1 and result.out.count("repeat with:") == failed


def test_bench_does_not_time_what_is_wrong(spoiled, tmp_path):
    result = spoiled("value", "bench", "--shape", "1,4/2,3,40,16", "--type", "f32", "--json", "rows.json", "--html", "report.html")
    assert "MISMATCH" in result.out
    page = (tmp_path / "report.html").read_text()
    assert "MISMATCH: not timed" in page and 'id="roofline"' not in page and page.endswith("</html>\n")
    row = json.loads((tmp_path / "rows.json").read_text())
    assert row["seconds_median"] is None and row["share"] is None and row["error"] > row["bound"]


def test_run_reports_a_library_error(spoiled, qkv, tmp_path):
    args, _ = qkv()
    result = spoiled("fail", "run", *args, "-o", "out.npy", code=2)
    assert "memory" in result.err and not (tmp_path / "out.npy").exists()
