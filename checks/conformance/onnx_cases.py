"""Reads the ONNX node tests: case.json and .npy files in, a Problem and the expected outputs out."""
import dataclasses
import json
import os
import pathlib

import numpy as np

import native
from problem import UNBOUNDED, Problem

DTYPES = {"float32": "f32", "float16": "f16", "float64": "f32"}  # float64 is rounded to float32: see Case.rounded


def root():
    """ATTN_CONFORMANCE, or the folder `shared/conformance` beside the repository."""
    return pathlib.Path(os.environ.get("ATTN_CONFORMANCE", native.ROOT.parent / "shared" / "conformance")) / "onnx"


def names():
    return sorted(path.parent.name for path in root().glob("*/case.json"))


@dataclasses.dataclass
class Case:
    name: str
    facts: dict        # case.json
    inputs: dict
    outputs: dict
    problem: Problem
    layout: dict
    present: dict      # the joined K and V
    prob_mul: float

    @property
    def flex(self):
        return self.facts["op"] == "FlexAttention"

    @property
    def rounded(self):
        """The case is float64, which the library has not: its inputs are rounded, so that only ONNX's own tolerance can hold."""
        return self.facts["problem"]["dtype"] == "float64"

    def expected(self):
        """Y as (B, H, L, D)."""
        return heads(self.outputs["Y"], self.facts["problem"]["q_heads"])


def heads(array, count):
    """Rank 3 (batch, length, heads x dim) as a (batch, heads, length, dim) view; rank 4 as it is."""
    if array.ndim == 4:
        return array
    B, L, width = array.shape
    return array.reshape(B, L, count, width // count).transpose(0, 2, 1, 3)


def _mask(facts, inputs):
    """(mask, keys that it covers). Columns that the mask is short of are hidden."""
    if facts["mask"] == "none":
        return None, facts["total_len"]
    mask = inputs["attn_mask"].reshape(facts["mask_shape4"])
    return mask, facts["total_len"] - facts["mask_pad"]


def _added(facts, mask):
    """A constant or (i - j) times a constant on every score, as a float32 mask. Both are exact where the products are small integers."""
    rows, keys = facts["q_len"], facts["total_len"]
    term = np.zeros((1, 1, 1, 1))
    if facts["score_add"] is not None:
        term = term + facts["score_add"]
    if facts["score_add_relpos"] is not None:
        term = term + facts["score_add_relpos"] * (np.arange(rows)[:, None] - np.arange(keys)[None, :])
    if mask is not None:
        raise ValueError("a case with a mask and a score modifier")
    return term.astype(np.float32)


def load(name):
    folder = root() / name
    facts = json.loads((folder / "case.json").read_text())
    read = lambda entries: {entry["slot"]: np.load(folder / entry["file"]) for entry in entries}
    inputs, outputs, size = read(facts["inputs"]), read(facts["outputs"]), facts["problem"]
    q = heads(inputs["Q"], size["q_heads"])
    joined = {}
    for letter, word in (("K", "key"), ("V", "value")):
        new = heads(inputs[letter], size["kv_heads"])
        past = inputs.get(f"past_{word}")
        joined[f"present_{word}"] = new if past is None else np.concatenate([past, new], axis=2)
    k, v = joined["present_key"], joined["present_value"]
    if size["dtype"] == "float64":
        q, k, v = (array.astype(np.float32) for array in (q, k, v))
    mask, covered = _mask(size, inputs)
    if size["score_add"] is not None or size["score_add_relpos"] is not None:
        mask = _added(size, mask)
    valid = size["kv_valid"] if size["kv_valid"] is not None else [size["total_len"]] * size["batch"]
    lengths = [min(n, covered) for n in valid]
    if mask is not None and covered < size["total_len"]:  # never read: its columns end where the lengths do
        k, v = k[:, :, :covered], v[:, :, :covered]
    left, right = size["window_left"], size["window_right"]
    if size["causal"]:
        right = 0 if right == UNBOUNDED else min(right, 0)
    offset = [int(d) for d in size["diag_offset"]]
    bottom_right = offset == [n - size["q_len"] for n in lengths]  # the usual case; the offsets themselves where it is not
    given = lengths if size["kv_valid"] is not None or covered < size["total_len"] else None
    made = Problem(q, k, v, DTYPES[size["dtype"]], size["scale"], size["softcap"], mask, len_kv=given, bottom_right=bottom_right,
                   offset=0 if bottom_right else offset, left=left, right=right)
    order = {"order": "BLHD"} if size["layout"] == "BSHD" else {}
    layout = {"q": order, "out": order} | ({} if size["past_len"] else {"k": order, "v": order})
    return Case(name, facts, inputs, outputs, made, layout, joined, size["prob_mul"] if size["prob_mul"] is not None else 1.0)
