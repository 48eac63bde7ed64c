"""check, bench, info, explain: what they print, their JSON, the progress bar, and that the manual page knows every option."""
import json
import os
import pathlib
import pty
import re
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
COMMANDS = ("run", "check", "bench", "info", "explain")
SHAPES = ("origin", "D2", "D3", "D4", "D5", "M1", "P1", "P2", "P3", "P4")


def isas(attn):
    return json.loads(attn("info", "--json").out)["isas"]


PREFILL = ["1,2/1,300,600,64", "--type", "bf16", "--precision", "fast"]


def fast_isas(attn):
    """The instruction sets that round weights of bf16 in the precision fast."""
    return [isa for isa in isas(attn) if json.loads(attn("explain", *PREFILL, "--isa", isa, "--json").out)["weight_error"] > 0]


# ---- info ----
def test_version_and_help(attn):
    version = attn("--version").out
    assert re.fullmatch(r"attn \d+\.\d+\.\d+\n", version)
    assert all(command in attn("--help").out for command in COMMANDS)
    for command in COMMANDS:
        assert attn(command, "--version").out == version
        assert "--help" in attn(command, "--help").out
        assert attn(command, "--usage").out.startswith("Usage: attn " + command)


def test_info(attn):
    text = attn("info").out
    for word in ("version", "devices", "cpu", "reference", "isas", "scalar", "precision exact", "threads", "pool"):
        assert word in text


def test_info_json(attn):
    report = json.loads(attn("info", "--json", "--threads", "1").out)
    assert set(report) == {"command", "version", "device", "isa", "isas", "precision", "threads", "pool", "devices"}
    assert report["device"] == "cpu" and report["isa"] in report["isas"] and report["isas"][0] == "scalar" and report["threads"] == 1
    assert [d["device"] for d in report["devices"]] == ["cpu", "reference"]


def test_info_measures(attn):
    ceilings = json.loads(attn("info", "--measure", "--json").out)["ceilings"]
    assert set(ceilings) >= {"dram_read", "fma_f32"} and ceilings["dram_read"] > 1e8 and ceilings["fma_f32"] > 1e8
    text = attn("info", "--measure").out
    assert re.search(r"dram_read +[\d.]+ GB/s\nfma_f32 +[\d.]+ GFLOP/s", text)
    if fast_isas(attn):  # whose matrices of bf16 are what rounds
        assert ceilings["dot_bf16"] > 1e8 and re.search(r"dot_bf16 +[\d.]+ GFLOP/s", text)
    assert "dot_bf16" not in json.loads(attn("info", "--measure", "--json", "--isa", "scalar").out)["ceilings"]


# ---- explain ----
def test_explain(attn):
    text = attn("explain", "1,32/2,1,1024,128", "--type", "bf16", "--passes", "2").out
    for word in ("kernel", "passes      2", "chunks", "workspace", "reason", "operations"):
        assert word in text


def test_explain_json(attn):
    args = ["explain", "--shape", "2,8/2,10,20,64/32,causal=bottom-right", "--type", "f16", "--type-out", "f32", "--mask", "bool", "--json"]
    report = json.loads(attn(*args).out)
    assert set(report) == {"device", "isa", "kernel", "passes", "threads", "chunk", "chunks", "rows", "jobs", "workspace", "bytes", "operations",
                           "weight_error", "reason", "problem", "command", "version", "precision"}
    assert report["weight_error"] == 0 and (report["command"], report["precision"]) == ("explain", "exact")
    assert report["operations"] == 2 * (64 + 32) * 2 * 8 * sum(range(11, 21))
    problem = report["problem"]
    assert (problem["type_q"], problem["type_out"], problem["type_mask"], problem["align"], problem["right"], problem["dim_v"]) == (
        "f16", "f32", "bool", "bottom-right", 0, 32)


def test_explain_takes_cases_and_bands(attn):
    report = json.loads(attn("explain", "--case", "P1", "--window", "7,0", "--offset", "1", "--json").out)
    assert (report["problem"]["left"], report["problem"]["right"], report["problem"]["offset"]) == (7, 0, 1)


def test_explain_precision(attn):
    for isa in isas(attn):
        fast = json.loads(attn("explain", *PREFILL, "--isa", isa, "--json").out)["weight_error"]
        assert fast in (0, 2**-8) and ("weights     rounded, by up to 0.00391" if fast else "weights     float32") in attn("explain", *PREFILL, "--isa", isa).out
        for args in (["1,2/1,1,600,64", *PREFILL[1:]], [*PREFILL, "--precision", "exact"], PREFILL[:-2]):  # a decode step; exact
            assert "weights     float32" in attn("explain", *args, "--isa", isa).out


# ---- check ----
def test_check_listed(attn):
    """Every listed problem, the ten shapes cut down, on the best kernels."""
    result = attn("check", "--seconds", "0", "--seed", "1")
    assert re.search(r"seed 1\n", result.out)
    passed, failed = re.search(r"(\d+) passed, (\d+) failed\n$", result.out).groups()
    assert int(passed) > 300 and failed == "0"


def test_check_random_problems_are_those_of_the_seed(attn):
    first, second = (json.loads(attn("check", "--case", "random:9:%d" % n, "--json").out)["cases"][0] for n in (1, 2))
    again = json.loads(attn("check", "--case", "random:9:1", "--json").out)["cases"][0]
    assert first["problem"] == again["problem"] and first["verify"] == again["verify"] and first["problem"] != second["problem"]


def test_check_on_every_isa(attn):
    for isa in isas(attn):
        assert "isa %s," % isa in attn("check", "--isa", isa, "--case", "everything").out


def test_check_fast(attn):
    """The bound is the declared one: wider than exact's, and error enough to fill more of it than exact does."""
    for isa in fast_isas(attn):
        for name in ("P1.small", "everything"):
            text = attn("check", "--isa", isa, "--precision", "fast", "--case", name, "--type", "bf16").out
            assert "isa %s, precision fast," % isa in text and text.endswith("1 passed, 0 failed\n")
        verify = [json.loads(attn("check", "--isa", isa, "--precision", p, "--seed", "1", "--case", "P1.small", "--type", "bf16", "--json").out)["cases"][0]
                  for p in ("exact", "fast")]
        exact, fast = (case["verify"]["correctly_rounded"] for case in verify)
        assert exact > 0.99 > fast and " --precision fast" in verify[1]["command"] and "--precision" not in verify[0]["command"]


def test_check_the_reference_itself(attn):
    assert attn("check", "--device", "reference", "--case", "everything").out.endswith("3 passed, 0 failed\n")


def test_check_stops_in_time(attn):
    begun = time.monotonic()
    attn("check", "--case", "random:1", "--seconds", "0.5", "--type", "f32", "--device", "reference")
    assert time.monotonic() - begun < 60


def test_check_origin_in_plain_words(attn):
    text = attn("check", "--case", "origin", "--type", "bf16", "--passes", "2").out
    assert "origin: shape 1,32/2,1,1024,128, q bf16" in text and "2 passes" in text
    assert "verified 32 of 32 rows against the reference: all 4096 elements are within the bound" in text
    assert re.search(r"worst element out\[.*\]: got .*, want .*, error .*, bound .*, error/bound", text)
    assert text.endswith("1 passed, 0 failed\n")


def test_check_json(attn):
    report = json.loads(attn("check", "--case", "D2.small", "--seed", "4", "--json").out)
    assert set(report) == {"command", "version", "device", "isa", "precision", "threads", "seed", "seconds", "passed", "failed", "worst_ratio", "worst_case", "cases", "failures"}
    assert (report["passed"], report["failed"], report["failures"], report["seed"]) == (3, 0, [], 4)
    assert [case["problem"]["type_q"] for case in report["cases"]] == ["f32", "f16", "bf16"]
    assert all(case["verify"]["passed"] and case["stray_bytes"] == 0 for case in report["cases"])


def test_every_listed_name_is_taken(attn):
    names = attn("check", "--list").out.split()
    assert set(SHAPES) < set(names) and len(names) == len(set(names)) and len(names) > 100
    for name in names[2 * len(SHAPES) : -2 : 9]:
        attn("check", "--case", name, "--device", "reference", "--type", "f32")


# ---- bench ----
FIELDS = {"command", "version", "machine", "case", "shape", "device", "isa", "precision", "type", "threads", "seconds_median", "bytes", "operations", "ceiling",
          "ceiling_value", "ceiling_spread", "seconds_floor", "share", "error", "bound", "error_relative", "runs", "copies", "plan"}


def test_bench(attn, tmp_path):
    args = ["bench", "--case", "origin", "--shape", "1,4/2,100,120,32/16,causal=bottom-right", "--type", "bf16", "--seconds", "0", "--threads", "1"]
    ceilings = json.loads(attn("info", "--measure", "--json").out)["ceilings"]
    table = attn(*args, "--json", "rows.json").out
    rows = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert [row["case"] for row in rows] == ["origin", "1,4/2,100,120,32/16,causal=bottom-right"]
    for row in rows:
        assert set(row) == FIELDS and row["command"] == "bench" and "attn %s\n" % row["version"] == attn("--version").out
        assert (row["type"], row["device"], row["threads"]) == ("bf16", "cpu", 1)
        assert 0 <= row["error_relative"] < 4e-3 and row["runs"] >= 5 and (row["ceiling_spread"] <= 0.15 or "samples of" in table)
        assert row["ceiling"] in ceilings and row["error"] <= row["bound"] and row["plan"]
        work = row["bytes"] if row["ceiling"] == "dram_read" else row["operations"]
        assert row["share"] == pytest.approx(work / row["ceiling_value"] / row["seconds_median"], rel=1e-6)
        assert row["case"] in table
    assert rows[0]["bytes"] == 2 * (2 * 2 * 1024 * 128 + 2 * 32 * 128) and rows[0]["operations"] == 4 * 128 * 1024 * 32
    assert rows[1]["operations"] == 2 * (32 + 16) * 4 * sum(range(21, 121))


def test_bench_options(attn):
    lines = attn("bench", "--shape", "1,4/2,20,120,32", "--type", "f16,f32", "--seconds", "0", "--mask", "all-true", "--layout", "blhd", "--json", "-").out
    assert [json.loads(line)["type"] for line in lines.splitlines()] == ["f32", "f16"]


def test_bench_fast(attn):
    for isa in fast_isas(attn):
        for precision in ("exact", "fast"):
            args = ["bench", "--shape", PREFILL[0], "--type", "bf16", "--seconds", "0", "--isa", isa, "--precision", precision]
            row = json.loads(attn(*args, "--json", "-").out)
            assert row["precision"] == precision and ("with rounded weights" in row["plan"]) == (precision == "fast")
            assert row["ceiling"] in ("dot_bf16", "dram_read") and row["error_relative"] < 8e-3
        assert "isa %s, precision fast," % isa in attn(*args).out


# ---- the progress bar ----
def stderr_on_a_terminal(binary, args):
    master, slave = pty.openpty()
    done = subprocess.Popen([binary, *args], stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    text = b""
    try:
        while part := os.read(master, 4096):
            text += part
    except OSError:
        pass  # the terminal ends with its last writer
    os.close(master)
    return done.wait(), text


LONG = ["check", "--case", "random:1", "--seconds", "3", "--device", "reference"]


def test_progress_on_a_terminal_only(binary, attn):
    code, text = stderr_on_a_terminal(binary, LONG)
    assert code == 0 and b"checking [" in text and b"%" in text and text.endswith(b"\r\x1b[K")
    assert attn(*LONG).err == ""


def test_no_progress_for_what_is_short(binary):
    assert stderr_on_a_terminal(binary, ["info"]) == (0, b"")


# ---- the manual page ----
def test_manual_names_every_option(attn):
    page = (ROOT / "docs" / "attn.1").read_text().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")
    for command in COMMANDS:
        for option in set(re.findall(r"--[a-z][a-z-]+", attn(command, "--help").out)):
            assert option in page, (command, option)
    for option in set(re.findall(r"--[a-z][a-z-]+", page)) - {"--help", "--usage", "--version"}:
        assert any(option in attn(command, "--help").out for command in COMMANDS), option
