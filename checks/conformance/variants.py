"""Reads the words that name a variant of a case ("Lk=61, mask=None", "four single steps") and runs it."""
import dataclasses
import re

import numpy as np

import call
import cases
import fills
import native
from problem import UNBOUNDED

NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}

STEPS = re.compile(r"(\w+ )?single steps|row by row|one row at a time|\w+ calls with lq=1")


@dataclasses.dataclass
class Variant:
    problem: object
    layout: dict
    config: call.Config
    rows: slice = dataclasses.field(default_factory=lambda: slice(None))       # of the variant, to hold against the case's
    base_rows: slice = dataclasses.field(default_factory=lambda: slice(None))  # of the case
    steps: bool = False             # one call for each row
    each: str = ""                  # "batch": one call for each sequence
    per: str = ""                   # a size that a time is divided by


def bias(problem):
    """The ALiBi term that a problem's slopes add, (B, Hq, Lq, Lk)."""
    B, Hq, _, Lq, Lk, _, _ = problem.sizes
    d = problem.diagonals().reshape(B, 1, 1, 1)
    distance = np.abs(np.arange(Lq)[:, None] + d - np.arange(Lk)[None, :])
    return -problem.slopes.astype(np.float64)[None, :, None, None] * distance


def as_additive(mask, dtype):
    """A bool mask as 0 and -inf."""
    return fills.rounded(np.where(mask, 0.0, -np.inf), dtype)


def band_mask(problem):
    """The band and the key lengths as a bool mask, (B, 1, Lq, Lk)."""
    import reference
    return reference.visible(problem, problem.diagonals(), problem.lengths_kv(), None, None, np.arange(problem.q.shape[2]),
                             range(problem.k.shape[2]))


def _join_masks(problem, flags):
    """The problem with flags (bool) joined to its mask."""
    mask = problem.mask4()
    if mask is None:
        return problem.replace(mask=flags)
    if mask.dtype == np.bool_:
        return problem.replace(mask=mask & flags)
    return problem.replace(mask=np.where(flags, mask, np.array(-np.inf, mask.dtype)))


def _grown(problem, rows, seed=77):
    """Rows more in front of the problem's own, random, so that the last ones are the case's."""
    B, Hq, _, Lq, _, D, _ = problem.sizes
    extra = fills.rounded(np.random.default_rng(seed).standard_normal((B, Hq, rows - Lq, D)), problem.dtype)
    more = rows - Lq
    lengths = None if problem.len_q is None else [n + more for n in problem.len_q]
    return problem.replace(q=np.concatenate([extra, problem.q], axis=2), bottom_right=False, len_q=lengths,
                           offset=[int(d) - more for d in problem.diagonals()])


def _resized(case, name, value):
    """A size that changes the inputs themselves: the case drawn anew."""
    fields = {name: int(value)}
    if name == "D" and case["D"] == case["Dv"]:
        fields["Dv"] = int(value)
    return cases.problem(cases.with_fields(case, fields))


def _assign(variant, case, name, value):
    """One 'name=value' of a variant's text."""
    problem, number = variant.problem, None if not re.fullmatch(r"-?\d+", value) else int(value)
    if name in ("passes", "threads"):
        variant.config = dataclasses.replace(variant.config, **{name: number})
    elif name == "num_splits":
        variant.config = splits(problem, number, variant.config)
    elif name == "mask" and value.lower() == "none":
        variant.problem = problem.replace(mask=None)
    elif name == "Lk":
        variant.problem = problem.keys(0, number) if number <= problem.k.shape[2] else _resized(case, name, number)
    elif name == "Lq" and number > problem.q.shape[2]:
        variant.rows, variant.problem = slice(number - problem.q.shape[2], None), _grown(problem, number)
    elif name == "Lq":
        variant.problem, variant.base_rows = problem.rows(0, number), slice(0, number)
    elif name == "Hkv":
        _expand_heads(variant, number)
    elif name in ("B", "Hq", "D", "Dv"):
        variant.problem = _resized(case, name, number)
    elif name == "row_capacity":
        variant.layout = {k: ({**v, "row_capacity": number} if k in ("k", "v") else v) for k, v in variant.layout.items()}
    elif name in ("softcap", "scale"):
        variant.problem = problem.replace(**{name: None if value.lower() in ("none", "null") else float(value)})
    elif name in ("causal", "window_left", "window_right"):
        bottom_right, left, right = cases.band(case | {name: value if number is None else number})
        variant.problem = problem.replace(bottom_right=bottom_right, left=left, right=right, offset=0)
    else:
        raise fills.UnknownRule(f"variant '{name}={value}'")


def _expand_heads(variant, heads_kv):
    """K and V copied so that each group of query heads has its own."""
    problem = variant.problem
    times = heads_kv // problem.k.shape[1]
    if times > 1:
        variant.problem = problem.replace(k=np.repeat(problem.k, times, axis=1), v=np.repeat(problem.v, times, axis=1))


def splits(problem, number, config):
    """A split of the keys into about `number` chunks, run in two passes."""
    chunk = max(1, -(-problem.k.shape[2] // number))
    return dataclasses.replace(config, chunk=chunk, passes=2 if number > 1 else 1)


def _rows(variant, text):
    """'last row', 'first 2 rows', 'row 3', 'rows a:b' of the variant; False if the text is no such thing."""
    length = variant.problem.q.shape[2]
    match = re.fullmatch(r"(last|first) (?:(\w+) )?rows?", text)
    if match:
        count = 1 if not match.group(2) else NUMBERS.get(match.group(2)) or int(match.group(2))
        variant.rows = slice(length - count, length) if match.group(1) == "last" else slice(0, count)
        return True
    match = re.fullmatch(r"rows? (\d+)(?::(\d+))?", text)
    if match:
        first = int(match.group(1))
        variant.rows = slice(first, int(match.group(2)) if match.group(2) else first + 1)
    return bool(match)


def _phrase(variant, text):
    """A clause without '='."""
    problem, name = variant.problem, text.lower()
    if name in ("this", "prefill", "decode") or _rows(variant, name):
        return
    if name in ("causal only", "window off", "no window", "full causal", "without window"):
        right = 0 if problem.right == 0 else UNBOUNDED
        variant.problem = problem.replace(left=UNBOUNDED, right=right)
    elif name in ("no mask", "without mask", "mask off"):
        variant.problem = problem.replace(mask=None)
    elif name in ("no softcap", "softcap off", "without softcap"):
        variant.problem = problem.replace(softcap=0.0)
    elif name in ("no sinks", "without sinks"):
        variant.problem = problem.replace(sinks=None)
    elif re.fullmatch(r"(one|a) call (per|for each) (batch|sequence)|each (batch|sequence) alone", name):
        variant.each = "batch"
    elif re.fullmatch(r"alibi (written )?as (an )?additive mask", name):
        term = bias(problem)
        mask = problem.mask4()
        if mask is not None:
            term = term + (np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else mask.astype(np.float64))
        variant.problem = problem.replace(slopes=None, mask=term.astype(np.float32))
    elif re.fullmatch(r"(same |bool )?mask as (an )?additive( mask)?", name):
        variant.problem = problem.replace(mask=as_additive(problem.mask, problem.dtype))
    elif re.fullmatch(r"(same |additive )?mask as (a )?bool( mask)?", name):
        variant.problem = problem.replace(mask=problem.mask.astype(np.float64) != -np.inf)
    elif re.fullmatch(r"(causal|window|band|causal and window) (written )?as (a |an )?(bool |additive )?mask", name):
        flags = band_mask(problem)
        joined = _join_masks(problem.replace(left=UNBOUNDED, right=UNBOUNDED), flags)
        variant.problem = joined.replace(mask=as_additive(joined.mask, problem.dtype)) if "additive" in name else joined
    elif re.fullmatch(r"(seqlens?|lengths?)(_k)? (written )?as (a |an )?(bool |additive )?mask", name):
        flags = (np.arange(problem.k.shape[2]) < problem.lengths_kv()[:, None])[:, None, None, :]
        d = [int(n) for n in problem.diagonals()]
        variant.problem = _join_masks(problem.replace(len_kv=None, bottom_right=False, offset=d), flags)
    elif re.fullmatch(r"(repeat_interleave|expanded|repeated|materiali[sz]ed) k/v( heads)?", name):
        _expand_heads(variant, problem.q.shape[1])
    elif name in ("contiguous", "packed", "materialised copies", "materialized copies", "dense"):
        variant.layout = {}
    else:
        raise fills.UnknownRule(f"variant '{text}'")


def read(case, problem, text, config):
    """The Variant that a text names."""
    variant = Variant(problem, dict(case["layout"]), config)
    per = re.fullmatch(r"(.*) per (\w+)", text)
    if per and per.group(2) in ("D", "Dv", "B", "Lk", "Lq", "Hq"):
        text, variant.per = per.group(1), per.group(2)
    if re.fullmatch(r"same shape (.+)", text):
        rule = text[len("same shape "):]
        rules = {**case["input_rule"], "q": rule, "k": rule, "v": rule, "edits": []}
        variant.problem = cases.problem({**case, "input_rule": rules})
        return variant
    for clause in re.split(r",\s*", re.sub(r"\s*=\s*", "=", text.strip())):
        if STEPS.fullmatch(clause.lower()):
            variant.steps = True
            continue
        words = clause.split()
        for word in words:
            if "=" in word:
                _assign(variant, case, *word.split("=", 1))
        rest = " ".join(word for word in words if "=" not in word)
        if rest:
            _phrase(variant, rest)
    return variant


def _step(problem, i):
    """Row i as its own call; under a causal band with no more keys than there were at that step."""
    step, there = problem.rows(i, i + 1), int(problem.diagonals().max()) + i + 1
    return step.keys(0, there) if problem.right == 0 and 0 <= there < problem.k.shape[2] else step


def run(target, variant):
    """The variant's Result, rows and all."""
    problem, layout, config = variant.problem, variant.layout, variant.config
    if variant.each == "batch":
        parts = [call.forward(target, problem.batches(b, b + 1), {}, config) for b in range(problem.q.shape[0])]
        axis = 0
    elif variant.steps:
        parts = [call.forward(target, _step(problem, i), {}, config) for i in range(problem.q.shape[2])]
        axis = 2
    else:
        return call.forward(target, problem, layout, config)
    failed = [part.status for part in parts if part.status != native.OK]
    return call.Result(failed[0] if failed else native.OK, np.concatenate([part.out for part in parts], axis=axis),
                       np.concatenate([part.lse for part in parts], axis=axis), sum((part.violations for part in parts), []))
