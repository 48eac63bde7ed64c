"""Reads reports.json: features, sweeps and the Problem that each case describes."""
import copy
import functools
import itertools
import json
import pathlib
import re

import numpy as np

import fills
from problem import UNBOUNDED, Problem

REPORTS = pathlib.Path(__file__).with_name("reports.json")
EXTRA = pathlib.Path(__file__).with_name("extra.json")  # our own: words of the format that no report uses
# What the public header offers today; a case that needs more is skipped by name.
COVERED = {"seqlens_q", "seqlens_k", "alibi", "sinks", "softcap", "window", "merge", "num_splits", "context_object", "multithreaded", "cpu",
           "varlen", "binding"}
BASE_TOLERANCE = {"f32": (2e-5, 2e-5), "f16": (1e-3, 2e-3), "bf16": (8e-3, 1.6e-2)}


def load(path=REPORTS):
    return json.loads(pathlib.Path(path).read_text())


DEFAULTS = {"tier": "small", "causal": "none", "window_left": -1, "window_right": -1, "mask": None, "scale": None, "softcap": 0.0,
            "sinks": None, "alibi": None, "seqlens_q": None, "seqlens_k": None, "kv_storage": {"kind": "dense"}, "layout": {}, "needs": [],
            "reference": None}


def load_short(path=EXTRA):
    """Our own cases, which leave out what is usual: the fields above, normal inputs, the type's own tolerance."""
    made = []
    for number, short in enumerate(json.loads(path.read_text())):
        inputs = {name: short.pop(name, "normal 0 1") for name in ("q", "k", "v")}
        inputs |= {"edits": short.pop("edits", []), "seed": 9000 + number}
        case = DEFAULTS | short | {"input_rule": inputs, "expected": {"rules": short.pop("rules")}}
        for rule in case["expected"]["rules"]:
            for part in [rule, *rule.get("of", [])]:
                if part["rule"] in ("match_ref", "merge_parts", "close_to_variant") and "atol" not in part:
                    part["atol"], part["rtol"] = BASE_TOLERANCE[case["dtype"]]
        made.append(case)
    return made


def missing(case):
    """The features that the case needs and the library lacks."""
    return sorted(set(case["needs"]) - COVERED)


def _values(values):
    if isinstance(values, str):
        first, last = values.split("..")
        return list(range(int(first), int(last) + 1))
    return list(values)


def _place(case, name):
    """The dictionary that holds a swept field: the case itself, a dotted path, or the one part of the case that has the name."""
    if "." in name:
        *path, last = name.split(".")
        return functools.reduce(lambda part, key: part[key], path, case), last
    for part in (case, case["kv_storage"], case["layout"], case["input_rule"], case.get("mask") or {}):
        if name in part:
            return part, name
    return case, name


SIZES = {"B": 0, "Hq": 1, "Lq": 2, "Lk": 3}


def with_fields(case, fields):
    """The case with fields changed. Mask axes and rule ranges that followed a size go on following it."""
    new = copy.deepcopy(case)
    for name, value in fields.items():
        part, key = _place(new, name)
        old = part.get(key)
        part[key] = value
        mask = new.get("mask")
        if key in SIZES and mask and old is not None:
            axis = SIZES[key] - 4 + len(mask["shape"])
            if axis >= 0 and mask["shape"][axis] == old and old != 1:
                mask["shape"][axis] = value
        if key == "dtype" and old != value:
            _retype(new, old, value)
    return new


def _retype(case, old, new):
    """Another element type brings its base tolerance, and its own mask type where the mask had the old one."""
    if case.get("mask") and case["mask"]["dtype"] == old:
        case["mask"]["dtype"] = new
    floor = BASE_TOLERANCE[new]
    for rule in case["expected"]["rules"]:
        for part in [rule, *rule.get("of", [])]:
            if part["rule"] in ("match_ref", "close_to_variant", "merge_parts"):
                part["atol"], part["rtol"] = floor


def sweep(case):
    """(label, case) for each value of each swept field and each type."""
    axes = []
    for name, values in (case.get("sweep") or {}).items():
        keys = [key.strip() for key in name.strip("()").split(",")]
        axis = [dict(zip(keys, value if len(keys) > 1 else [value])) for value in _values(values)]
        if keys == ["D"] and case["D"] == case["Dv"]:  # a sweep of head dims: v follows, and each once with v as it was
            axis = [fields | {"Dv": fields["D"]} for fields in axis] + [f for f in axis if f["D"] != case["D"]]
        axes.append(axis)
    if case.get("dtypes"):
        axes.append([{"dtype": name} for name in case["dtypes"]])
    if not axes:
        return [("", case)]
    points = [functools.reduce(lambda a, b: a | b, point, {}) for point in itertools.product(*axes)]
    return [(" ".join(f"{k}={v}" for k, v in point.items()), with_fields(case, point)) for point in points]


def band(case):
    """(bottom_right, left, right) of causal and window together."""
    left, right = case.get("window_left", -1), case.get("window_right", -1)
    left, right = (UNBOUNDED if left is None else left), (UNBOUNDED if right is None else right)
    if case["causal"] != "none":
        right = 0 if right == UNBOUNDED else min(right, 0)
    return case["causal"] != "top-left", left, right


def problem(case):
    """Draws the case's inputs."""
    B, Hq, Hkv, Lq, Lk, D, Dv = (case[n] for n in ("B", "Hq", "Hkv", "Lq", "Lk", "D", "Dv"))
    rules, dtype = case["input_rule"], case["dtype"]
    generator = np.random.default_rng(rules["seed"])
    q = fills.draw(generator, (B, Hq, Lq, D), rules["q"], dtype)
    storage = case["kv_storage"]  # a plain type there is what K or V is stored in, beside q and out of the case's type
    k = fills.draw(generator, (B, Hkv, Lk, D), rules["k"], storage.get("k_type", dtype))
    v = fills.draw(generator, (B, Hkv, Lk, Dv), rules["v"], storage.get("v_type", dtype))
    mask = fills.mask(generator, case["mask"])
    sinks = fills.sinks(generator, case["sinks"], Hq)
    bottom_right, left, right = band(case)
    made = Problem(q, k, v, dtype, case["scale"], case["softcap"], mask, sinks, fills.slopes(case["alibi"], Hq), case["seqlens_q"],
                   case["seqlens_k"], bottom_right, 0, left, right, case.get("out_dtype"))
    _shared(case, made)
    for edit in rules.get("edits", []):
        _edit(made, edit)
    return made


def _shared(case, made):
    """Broadcast axes and views: index 0 stands for all, V may be the first components of K."""
    layout = case["layout"]
    for name in ("q", "k", "v"):
        keys = layout.get(name, {})
        for axis in keys.get("stride0", []):
            array = np.moveaxis(getattr(made, name), "BHLD".index(axis), 0)
            array[...] = array[:1].copy()
        if "view_of" in keys:
            first = keys.get("first", case["Dv"])
            setattr(made, name, getattr(made, keys["view_of"])[..., :first].copy())


def _edit(made, edit):
    array = getattr(made, edit["t"])
    value = fills.rounded(float(edit["value"]), "f32").astype(array.dtype)
    words = edit["sel"].split()
    if words[0] == "all":
        array[...] = value
    elif words[0] in ("row", "rows", "key", "keys"):
        array[:, :, fills.indices(words[1], array.shape[2])] = value
    elif words[0] == "past_seqlen":
        lengths = made.lengths_q() if edit["t"] == "q" else made.lengths_kv()
        for b, length in enumerate(lengths):
            array[b, :, length:] = value
    elif words[0] in ("excluded_keys", "keys_hidden_from_all_rows"):
        hidden = ~seen_keys(made)
        for b in range(array.shape[0]):
            array[b][:, hidden[b]] = value
    else:
        raise fills.UnknownRule(f"edit '{edit['sel']}'")


def seen_keys(made):
    """(B, Lk): some row of some head of the sequence sees the key."""
    import reference
    B, Hq, _, Lq, Lk, _, _ = made.sizes
    seen = np.zeros((B, Lk), bool)
    d, len_kv = made.diagonals(), made.lengths_kv()
    for b in range(B):
        rows = np.arange(int(made.lengths_q()[b]))
        flags = reference.visible(made, d[b:b + 1], len_kv[b:b + 1], None, None, rows, range(Lk))
        mask = made.mask4()
        if mask is not None:
            part = mask[b % mask.shape[0]][None]
            part = part if part.dtype == np.bool_ else part.astype(np.float64) != -np.inf
            flags = flags & (part if part.shape[2] == 1 else part[:, :, rows])
        seen[b] = flags.any(axis=(0, 1, 2))
    return seen


def checked(case):
    """(rows, batches) that the case asks to compare, None for all. Of a large case that does not say, a few sequences."""
    text = case.get("check_rows")
    if not text and case["tier"] == "device-large":
        return None, sorted({0, case["B"] // 2, case["B"] - 1})
    if not text:
        return None, None
    text = text.strip()
    match = re.match(r"(last|first)? ?batch(?:es)? ?(.*)", text)
    if match and match.group(1):
        return None, [case["B"] - 1 if match.group(1) == "last" else 0]
    if match:
        return None, fills.indices(match.group(2), case["B"])
    return fills.indices(text, case["Lq"]), None
