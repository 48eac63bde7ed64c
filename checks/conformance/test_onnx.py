"""Every ONNX node test of Attention and FlexAttention, on every device and ISA.

What ONNX has and the C API has not is said in its terms, exactly: rank 3 is a layout; past and present K and V are joined here and
compared bit for bit; a constant or relative term on the scores is a float32 additive mask; a mask that is short of columns is a
shorter key length; probabilities times a power of two are an output times it. float64 is rounded to float32 and held to ONNX's own
tolerance, and to this project's against the rounded inputs. qk_matmul_output is another operation's output and is not looked at.
"""
import os

import numpy as np
import pytest

import call
import conftest
import native
import onnx_cases
import reference
import rules
from call import Config

FLEX_ULP = {"f32": 3.4, "f16": 0.8}  # how far the expected outputs of FlexAttention cases are from the exact result
RTOL = 1e-6                          # of float32 cases; atol is 0


def test_data_is_there():
    if not onnx_cases.names():
        if os.environ.get("ATTN_REQUIRE_CONFORMANCE") == "1":
            pytest.fail(f"no ONNX cases in {onnx_cases.root()}, and ATTN_REQUIRE_CONFORMANCE=1 asks for them")
        pytest.skip(f"no ONNX cases in {onnx_cases.root()}; ATTN_CONFORMANCE names another folder")
    with open(onnx_cases.root() / "INDEX.tsv", encoding="utf-8") as index:
        listed = [line.split("\t")[0] for line in index][1:]
    assert sorted(listed) == onnx_cases.names()


def pytest_generate_tests(metafunc):
    if "onnx_name" in metafunc.fixturenames:
        pairs = [(onnx, name) for onnx in onnx_cases.names() for name in conftest.target_names(metafunc.config)]
        metafunc.parametrize("onnx_name,name", pairs, ids=[f"{onnx}-{name}" for onnx, name in pairs])


def steps(out, expected):
    """How many representable float16 values apart."""
    order = lambda a: np.where(a.view(np.int16) < 0, np.int16(-32768) - a.view(np.int16), a.view(np.int16)).astype(np.int64)
    return np.abs(order(np.ascontiguousarray(out)) - order(np.ascontiguousarray(expected)))


def compare(case, out, exact):
    """What is wrong with out (B, H, L, D), held against the expected outputs and, where these are inexact, the reference."""
    want, live = case.expected(), np.ones(out.shape[:3], bool)
    if case.rounded:
        return (rules.close(out, want, live, case.facts["atol"], case.facts["rtol"]) +
                rules.close(out, exact, live, 0.0, RTOL, "out against the reference on rounded inputs"))
    dtype = case.problem.dtype
    if case.flex:
        slack = FLEX_ULP[dtype] * rules.ulp(want.astype(np.float64), dtype)
        own = RTOL * np.abs(exact) if dtype == "f32" else rules.ulp(exact, dtype)
        wrong = rules.close(out, want, live, slack + own, 0.0)
        return wrong + (rules.close(out, exact, live, 0.0, RTOL, "out against the reference") if dtype == "f32"
                        else nearly_equal(out, exact.astype(np.float16)))
    return rules.close(out, want, live, 0.0, RTOL) if dtype == "f32" else nearly_equal(out, want)


def nearly_equal(out, want):
    """float16: within one step everywhere, equal in 99 %."""
    apart = steps(out, want.astype(np.float16))
    wrong = [f"{int((apart > 1).sum())} elements are more than 1 ulp off, the worst {int(apart.max())}"] if (apart > 1).any() else []
    equal = float((apart == 0).mean())
    return wrong + ([f"only {equal:.2%} of the elements are equal"] if equal < 0.99 else [])


@pytest.mark.parametrize("reading", onnx_cases.names())
def test_reading(reading):
    """The reference here, rounded once, is the expected output: the reading of the case is right. And K and V join to what they should."""
    case = onnx_cases.load(reading)
    exact = reference.attention(case.problem, exact=True).out * case.prob_mul
    rounded = exact.astype(case.expected().dtype)
    if case.rounded or case.flex:
        assert not compare(case, rounded.astype(np.float32) if case.rounded else rounded, exact)
    else:
        assert not rules.close(rounded, case.expected(), np.ones(exact.shape[:3], bool), 0.0, 0.0)
    for slot in ("present_key", "present_value"):
        if slot in case.outputs:
            assert case.outputs[slot].dtype == case.present[slot].dtype
            assert case.outputs[slot].tobytes() == np.ascontiguousarray(case.present[slot]).tobytes()


def judge(case, target):
    exact = reference.attention(case.problem, exact=True).out * case.prob_mul
    wrong, first = [], None
    plain = [Config()] if target.device == native.REFERENCE else [Config(passes=1), Config(passes=2, at_end=False, workspace=True)]
    for config in plain:
        result = call.forward(target, case.problem, case.layout, config)
        if result.status != native.OK:
            wrong.append(f"{config}: {target.library.text(result.status)}")
            continue
        out = (result.out.astype(np.float64) * case.prob_mul).astype(result.out.dtype)
        wrong += [f"{config}: {text}" for text in result.violations + compare(case, out, exact)]
        differ = first.bits_differ(result) if first is not None else None
        wrong += [f"passes 1 and 2: {differ}"] if differ else []
        first = result
    return wrong


def test_case(onnx_name, name, target_of, isolated):
    case, target = onnx_cases.load(onnx_name), target_of(name)
    isolated(lambda: judge(case, target))
