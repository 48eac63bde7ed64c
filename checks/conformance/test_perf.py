"""The rules of reports.json that compare times, run only with --perf: medians of alternating calls, in one process."""
import os
import statistics
import time

import pytest

import call
import cases
import conftest
import fills
import native
import rules
import variants
from call import Config
from test_reports import ALL

SECONDS = 0.4   # for each side of a comparison, at least
ATTEMPTS = 3    # a machine that does something else spoils a measurement; the best of three counts


def prepare(target, variant):
    """A function that runs the variant once."""
    ready = call.Prepared(target.context(variant.config), call.uniform(variant.problem), variant.layout, variant.config)
    args, context = ready.begin(), ready.context

    def once():
        status = context.forward(ready.c_problem, args)
        assert status == native.OK, target.library.text(status)
    once()
    return once


def alternate(first, second):
    """The medians of two calls that take turns."""
    times = ([], [])
    end = time.perf_counter() + 2 * SECONDS
    while time.perf_counter() < end or len(times[0]) < 5:
        for call_once, kept in zip((first, second), times):
            start = time.perf_counter()
            call_once()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]


def divisor(variant):
    """What a text's 'per D' divides a time by."""
    sizes = dict(zip(("B", "Hq", "Hkv", "Lq", "Lk", "D", "Dv"), variant.problem.sizes))
    return sizes[variant.per] if variant.per else 1


def pairs(case, problem, rule):
    """(label, numerator, denominator, factor of the denominator) for each comparison that a rule makes."""
    if rule["num"] == "T threads" and rule["den"] == "1 thread * 2 / T":
        for count in range(2, min(8, len(os.sched_getaffinity(0))) + 1):
            plain = lambda threads: variants.Variant(problem, case["layout"], Config(threads=threads))
            yield f"{count} threads", plain(count), plain(1), 2 / count
    elif "threads" in rule["num"]:
        raise fills.UnknownRule(f"time_ratio of '{rule['num']}'")
    else:
        num, den = (variants.read(case, problem, rule[side], Config()) for side in ("num", "den"))
        yield f"{rule['num']} to {rule['den']}", num, den, divisor(num) / divisor(den)


def pytest_generate_tests(metafunc):
    timed = [(case, rule) for case in ALL for rule in case["expected"]["rules"] if rule["rule"] in rules.TIMED]
    metafunc.parametrize("case,rule", timed, ids=[case["id"] for case, _ in timed])


@pytest.mark.perf
def test_time(case, rule, target_of, request, capsys):
    lacking = cases.missing(case)
    if lacking:
        pytest.skip(f"{case['id']} needs {', '.join(lacking)}, which the library does not have yet")
    target = target_of(conftest.target_names(request.config)[-1])
    problem = cases.problem(case)
    for label, num, den, factor in pairs(case, problem, rule):
        first, second = prepare(target, num), prepare(target, den)
        ratios = []
        for _ in range(ATTEMPTS):
            spent = alternate(first, second)
            ratios.append(spent[0] / (spent[1] * factor))
            if ratios[-1] <= rule["max"]:
                break
        with capsys.disabled():
            times = " to ".join(f"{seconds * 1e6:.1f} us" for seconds in spent)
            print(f"\n{case['id']} {label}: {times}, ratio {min(ratios):.3f}, at most {rule['max']}")
        assert min(ratios) <= rule["max"], f"{label}: {min(ratios):.3f} of at most {rule['max']}"
