"""Every case of reports.json (or ATTN_REPORTS) and extra.json, on every device and ISA of the library, judged by the case's own rules."""
import os
import pathlib
import subprocess

import numpy as np
import pytest

import call
import cases
import conftest
import native
import reference
import rules
import tensors
import variants
from call import Config

REPORTS = pathlib.Path(os.environ.get("ATTN_REPORTS", cases.REPORTS))
ALL = cases.load(REPORTS) + cases.load_short()
# Multiplications that a target is given at most, small cases being enough to judge a slow one.
WORK = {"reference": 5e7, "scalar": 1e9}


def work(case):
    return float(case["B"]) * case["Hq"] * case["Lq"] * case["Lk"] * (case["D"] + case["Dv"])


def footprint(case):
    """Bytes that a case's tensors take: each twice, as drawn and in guarded memory; a mask once more while it is made."""
    item = 4 if case["dtype"] == "f32" else 2
    rows = case["B"] * case["Hq"] * case["Lq"], case["B"] * case["Hkv"] * case["Lk"]
    mask = float(np.prod(case["mask"]["shape"])) if case["mask"] else 0.0
    return 2.1 * item * sum(rows) * (case["D"] + case["Dv"]) + 3.5 * mask * (1 if case["mask"] and case["mask"]["kind"] == "bool" else 8)


def available():
    """Bytes of memory that are free or can be freed."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def timed_only(case):
    return all(rule["rule"] in rules.TIMED for rule in case["expected"]["rules"])


def mask_fits(case):
    """False where the mask cannot broadcast to the scores: only something that is told shapes can refuse it."""
    if case["mask"] is None:
        return True
    full = (case["B"], case["Hq"], case["Lq"], case["Lk"])
    shape = case["mask"]["shape"]
    return len(shape) <= 4 and all(n in (1, m) for n, m in zip(reversed(shape), reversed(full)))


def runs_on(case, name, fastest):
    """Whether a target is asked to run a case: the fastest all, the others what they can in a moment."""
    if name in (fastest, "no library"):
        return True
    return case["tier"] == "small" and work(case) <= WORK.get(name, 2e10)


def pytest_generate_tests(metafunc):
    if "report" in metafunc.fixturenames:
        names = conftest.target_names(metafunc.config)
        pairs = [(case, name) for case in ALL if not timed_only(case) for name in (names if mask_fits(case) and not cases.missing(case)
                 else names[-1:]) if runs_on(case, name, names[-1])]
        metafunc.parametrize("report,name", pairs, ids=[f"{case['id']}-{name}" for case, name in pairs])


_kept = {}


def drawn(case, label):
    """(problem, expected), kept while the same case goes from target to target."""
    if _kept.get("id") != case["id"]:
        _kept.clear()
        _kept["id"] = case["id"]
    if label not in _kept:
        problem = cases.problem(case)
        valid = case["Hkv"] > 0 and case["Hq"] % case["Hkv"] == 0 and min(case["D"], case["Dv"]) > 0
        _kept[label] = problem, reference.attention(problem, *cases.checked(case)) if valid else None
    return _kept[label]


def configurations(case, fastest):
    """One pass with its buffers against the end of a page, two passes with them behind one and the caller's workspace."""
    if case.get("num_splits"):
        return [variants.splits(drawn(case, "")[0], case["num_splits"], Config())]
    if case["tier"] != "small":
        return [Config()]
    return [Config(passes=1), Config(passes=2, at_end=False, workspace=True)]


def judge(case, label, target, light):
    """What is wrong with one point of a case, over its configurations."""
    problem, expected = drawn(case, label)
    wrong, first, done = [], None, False
    for config in [Config()] if target.device == native.REFERENCE else configurations(case, not light):
        run = rules.Run(case, problem, expected, target, config, light)
        poisoned = case["layout"].get("scratch", {}).get("prefill") is not None
        if poisoned:
            run.config = Config(config.passes, config.chunk, config.threads, config.at_end, workspace=True)
        for rule in case["expected"]["rules"]:
            if target.mirrored and rule["rule"] in HOST_RULES:
                continue
            if rule["rule"] not in rules.TIMED and not (rule["rule"] in rules.ONCE and done):
                where = f"{label} {target.name} {run.config}".strip()
                wrong += [f"{where}: {rule['rule']}: {text}" for text in rules.RULES[rule["rule"]](run, rule)]
        done = True
        if run._result is not None and run.result.violations:
            wrong += [f"{target.name} {config}: {text}" for text in run.result.violations]
        if run._result is not None and run.result.status == native.OK and not config.chunk:
            differ = first.bits_differ(run.result) if first is not None else None
            wrong += [f"{label} {target.name}: passes 1 and 2: {differ}"] if differ else []
            first = run.result
    return wrong


def odd_strides(case):
    """The case itself, and where it sets strides of axes of size 1, as well with 0 and with huge ones."""
    odd = {name: keys["size1_strides"] for name, keys in case["layout"].items() if isinstance(keys, dict) and "size1_strides" in keys}
    yield "", case
    for value in (0, -3, 1 << 40) if odd else ():
        other = {name: {**case["layout"][name], "size1_strides": [value] * len(given)} for name, given in odd.items()}
        layout = {**case["layout"], **other}
        yield f"strides of {value}", {**case, "layout": layout}


def skip_unless_possible(case, config):
    lacking = cases.missing(case)
    if lacking:
        pytest.skip(f"{case['id']} needs {', '.join(lacking)}, which the library does not have yet")
    if case["tier"] == "device-large":
        need, free = footprint(case) / 1e9, available() / 1e9
        if not config.getoption("--large"):
            pytest.skip(f"{case['id']} needs {need:.0f} GB: --large runs it")
        if free < need:
            pytest.skip(f"{case['id']} needs {need:.0f} GB of free memory, {free:.0f} are there")


# About the process that calls, and not about what it calls.
HOST_RULES = {"rss_growth_max", "thread_count_restored", "scratch_max"}


def skip_on_device(case, target):
    """What does not apply where a device has memory and threads of its own."""
    if all(rule["rule"] in HOST_RULES for rule in case["expected"]["rules"]):
        pytest.skip(f"{case['id']} is about the memory or the threads of the host")
    if case["kind"] == "fork" and not target.forks:
        pytest.skip(f"{case['id']}: a device does not survive a fork")
    lengths = (case["seqlens_q"], case["Lq"]), (case["seqlens_k"], case["Lk"])
    if any(given is not None and not all(0 <= n <= most for n in given) for given, most in lengths):
        pytest.skip(f"{case['id']}: lengths in a device's memory are not looked at before a call")


def test_case(report, name, target_of, isolated, request, tmp_path):
    case = report
    skip_unless_possible(case, request.config)
    if not mask_fits(case):
        isolated(lambda: refused_by_command(case, tmp_path))
        return
    target = target_of(name)
    if target.mirrored:
        skip_on_device(case, target)
    light = name != conftest.target_names(request.config)[-1]
    points = [(f"{label} {more}".strip(), point) for label, swept in cases.sweep(case) for more, point in odd_strides(swept)]
    for label, point in points:
        drawn(point, label)  # here, so that all targets share it
    try:
        tensors.place_inputs(drawn(points[0][1], points[0][0])[0], case["layout"], True)
    except tensors.NotExpressible as reason:
        pytest.skip(f"{case['id']}: the C API has no words for {reason}")
    isolated(lambda: [text for label, point in points for text in judge(point, label, target, light)], 600)


def refused_by_command(case, folder):
    """The C API has strides and no shapes, so a mask of a wrong shape is the command's to refuse: exit code 2, no output file."""
    binary = pathlib.Path(os.environ.get("ATTN_BIN", native.path().with_name("attn")))
    if not binary.exists():
        return [f"{binary} is not there: build it, or name another in ATTN_BIN"]
    made = cases.problem(case)
    arguments = [str(binary), "run"]
    for flag, name in (("-q", "q"), ("-k", "k"), ("-v", "v"), ("--mask", "mask")):
        np.save(folder / f"{name}.npy", getattr(made, name))
        arguments += [flag, str(folder / f"{name}.npy")]
    out = folder / "out.npy"
    done = subprocess.run(arguments + ["-o", str(out)], capture_output=True, text=True, timeout=60)
    wrong = [] if done.returncode == 2 else [f"exit code {done.returncode}: {done.stderr}"]
    wrong += [] if "mask" in done.stderr else [f"the message does not name the mask: {done.stderr!r}"]
    return wrong + (["an output file was left"] if out.exists() else [])


@pytest.mark.parametrize("case", [case for case in ALL if case["reference"]], ids=lambda case: case["id"])
def test_reading(case):
    """The case's published sums come out of these rules as read here: what judges the library is itself judged."""
    want, got = case["reference"], reference.attention(cases.problem(case), exact=True)
    finite = np.isfinite(got.out)
    size = np.abs(got.out[finite]).sum()
    live = np.broadcast_to(got.live[:, None, :], got.lse.shape) & np.isfinite(got.lse)
    assert abs(got.out[finite].sum() - want["out_sum"]) <= 2e-9 * size + 1e-9
    assert size == pytest.approx(want["out_abs_sum"], rel=2e-9, abs=1e-9)
    assert got.out.reshape(-1)[:len(want["out_first"])] == pytest.approx(want["out_first"], rel=1e-8, abs=1e-8, nan_ok=True)
    assert int(got.empty().sum()) == want["rows_without_keys"]
    if want["lse_sum"] is not None:
        assert got.lse[live].sum() == pytest.approx(want["lse_sum"], rel=1e-8, abs=1e-8)


def test_every_rule_is_known():
    """A rule that nothing checks would be a case that cannot fail."""
    names = {part["rule"] for case in ALL for rule in case["expected"]["rules"] for part in [rule, *rule.get("of", [])]}
    assert names <= set(rules.RULES) | rules.TIMED
