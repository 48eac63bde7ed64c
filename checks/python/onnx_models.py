"""ONNX cases as whole models: those of the conformance folder, built from their case.json and .npy files, and those that the package onnx
generates for itself. Also what runs a model with libattn's operators and proves that it did."""
import dataclasses
import functools
import json
import pathlib
import sys
import warnings

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

import libattn.onnx

sys.path.append(str(pathlib.Path(__file__).parents[1] / "conformance"))
from onnx_cases import names, root  # noqa: E402, F401

OPERATORS = ("Attention", "FlexAttention")
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = {"Attention": ("Y", "present_key", "present_value", "qk_matmul_output"), "FlexAttention": ("Y",)}
PREVIEW = "ai.onnx.preview"
PREVIEW_BESIDE = 26  # opset of the ordinary operators that a modifier of FlexAttention uses
FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE


@dataclasses.dataclass
class Case:
    name: str
    model: onnx.ModelProto
    inputs: dict
    outputs: dict
    facts: dict


def infos(arrays):
    return [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in arrays.items()]


def score_graph(facts):
    """The score_mod that a case of FlexAttention means, or None: a constant, (i - j) times a constant, or the causal band."""
    nodes, constants = [], {"axes": np.array([1], np.int64)}
    if facts["score_add"] is not None:
        constants["term"] = np.array(facts["score_add"], np.float32)
        nodes = [helper.make_node("Add", ["scores", "term"], ["changed"])]
    elif facts["score_add_relpos"] is not None or facts["causal"]:
        rows, keys = np.arange(facts["q_len"], dtype=np.int64), np.arange(facts["total_len"], dtype=np.int64)
        constants |= {"rows": rows[:, None], "keys": keys[None, :]}
        if facts["causal"]:
            constants["hidden"] = np.array(-np.inf, np.float32)
            nodes = [helper.make_node("GreaterOrEqual", ["rows", "keys"], ["seen"]),
                     helper.make_node("Where", ["seen", "scores", "hidden"], ["changed"])]
        else:
            constants["factor"] = np.array(facts["score_add_relpos"], np.float32)
            nodes = [helper.make_node("Sub", ["rows", "keys"], ["steps"]), helper.make_node("Cast", ["steps"], ["distance"], to=FLOAT),
                     helper.make_node("Mul", ["distance", "factor"], ["term"]), helper.make_node("Add", ["scores", "term"], ["changed"])]
    return modifier(nodes, "scores", constants) if nodes else None


def prob_graph(facts):
    if facts["prob_mul"] is None:
        return None
    node = helper.make_node("Mul", ["probs", "factor"], ["changed"])
    return modifier([node], "probs", {"factor": np.array(facts["prob_mul"], np.float32)})


def modifier(nodes, taken, constants):
    used = {name for node in nodes for name in node.input}
    values = [onnx.numpy_helper.from_array(x, name) for name, x in constants.items() if name in used]
    return helper.make_graph(nodes, f"modifies_{taken}", [helper.make_tensor_value_info(taken, FLOAT, list("BHLS"))],
                             [helper.make_tensor_value_info("changed", FLOAT, list("BHLS"))], values)


def load(name):
    """A case of the conformance folder. float64, which libattn refuses, becomes a model that casts to float32 and back."""
    folder = root() / name
    facts = json.loads((folder / "case.json").read_text())
    inputs, outputs = ({entry["slot"]: np.load(folder / entry["file"]) for entry in facts[part]} for part in ("inputs", "outputs"))
    operator, problem, attributes = facts["op"], facts["problem"], dict(facts["attributes"])
    flex = operator == "FlexAttention"
    if flex:
        attributes |= {key: graph for key, graph in (("score_mod", score_graph(problem)), ("prob_mod", prob_graph(problem))) if graph}
    given, wanted = ([name if name in arrays else "" for name in slots] for slots, arrays in
                     ((INPUTS, inputs), (OUTPUTS[operator], outputs)))
    nodes = []
    if problem["dtype"] == "float64":
        nodes = [helper.make_node("Cast", [letter], [f"{letter}32"], to=FLOAT) for letter in "QKV"]
        nodes.append(helper.make_node(operator, [f"{letter}32" for letter in "QKV"], ["Y32"], domain=PREVIEW, **attributes))
        nodes.append(helper.make_node("Cast", ["Y32"], ["Y"], to=DOUBLE))
    else:
        trim = lambda slots: slots[:max(i for i, slot in enumerate(slots) if slot) + 1]
        nodes.append(helper.make_node(operator, trim(given), trim(wanted), domain=PREVIEW if flex else "", **attributes))
    opsets = [helper.make_opsetid("", PREVIEW_BESIDE if flex else facts["opset"])]
    opsets += [helper.make_opsetid(PREVIEW, facts["opset"])] if flex else []
    model = helper.make_model(helper.make_graph(nodes, name, infos(inputs), infos(outputs)), opset_imports=opsets)
    onnx.checker.check_model(model)
    return Case(name, model, inputs, outputs, facts)


@functools.lru_cache(maxsize=None)
def generated():
    """Name -> the test case of onnx's own backend tests, of each model that is one node of an attention operator and no function's body."""
    from onnx.backend.test.case.node import collect_testcases
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other operators' cases, all of which are drawn on the way
        collect_testcases()
    return {case.name: case for case in collect_testcases() if operator_of(case.model)}


def operator_of(model):
    nodes = model.graph.node
    return nodes[0].op_type if len(nodes) == 1 and nodes[0].op_type in OPERATORS else None


def run(model, inputs):
    """The model's outputs; its attention nodes must be libattn's."""
    evaluator = ReferenceEvaluator(model, new_ops=libattn.onnx.OPERATORS)
    ours = [type(node) for node in evaluator.rt_nodes_ if type(node).__name__ in OPERATORS]
    assert ours and all(cls in libattn.onnx.OPERATORS for cls in ours), ours
    return evaluator.run(None, inputs)
