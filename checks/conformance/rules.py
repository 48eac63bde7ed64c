"""The rules of reports.json. Each takes a Run and the rule's own fields and returns what is wrong, as a list of sentences."""
import dataclasses
import operator
import re

import numpy as np

import call
import cases
import fills
import native
import procedures
import reference
import variants
from call import Config

OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}


class Run:
    """One case on one target: what was asked, what came out, what should have."""

    def __init__(self, case, problem, expected, target, config, light=False):
        self.case, self.problem, self.expected, self.target, self.config = case, problem, expected, target, config
        self.layout = case["layout"]
        self.light = light  # few repeats: a slow device
        self._result = None

    @property
    def result(self):
        if self._result is None:
            self._result = call.forward(self.target, self.problem, self.layout, self.config)
        return self._result

    def keep(self, result):
        """Takes a call that a rule made as the case's own: it may be a long one."""
        self._result = self._result or result

    def again(self, problem=None, layout=None, **changes):
        """Another call, with parts of the configuration changed."""
        return call.forward(self.target, problem or self.problem, self.layout if layout is None else layout,
                            dataclasses.replace(self.config, **changes))

    def refused(self):
        status = self.result.status
        return [] if status == native.OK else [f"status {status}: {self.target.library.text(status)}"]

    def live(self):
        """(b, Hq, l): rows that are to be looked at."""
        return np.broadcast_to(self.expected.live[:, None, :], self.expected.lse.shape)

    @property
    def out(self):
        """The judged part of the result."""
        return self.expected.of(self.result.out)

    @property
    def lse(self):
        return self.expected.of(self.result.lse)


def _first(bad, a, b, what):
    """Names the worst element of a mismatch."""
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.where(bad, np.nan_to_num(np.abs(a - b), nan=np.inf), -1.0)
    where = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape))
    return [f"{what}{list(where)}: {a[where]!r}, expected {b[where]!r}; {int(bad.sum())} of {bad.size} elements are off"]


def close(out, ref, live, atol, rtol, what="out"):
    """|out - ref| <= atol + rtol |ref| in the live rows; NaN with NaN, infinities equal."""
    out, ref = out.astype(np.float64), np.broadcast_to(ref, out.shape)
    live = live.reshape(live.shape + (1,) * (out.ndim - live.ndim))
    with np.errstate(invalid="ignore", over="ignore"):
        good = (np.abs(out - ref) <= atol + rtol * np.abs(ref)) | (out == ref) | (np.isnan(out) & np.isnan(ref))
    bad = ~good & live
    return _first(bad, out, ref, what) if bad.any() else []


UNITS = {"f32": (-126, 23), "f16": (-14, 10), "bf16": (-126, 7)}


def ulp(values, dtype):
    """The spacing of a type at |value|."""
    smallest, digits = UNITS[dtype]
    exponent = np.frexp(np.where(values == 0, 1e-300, np.abs(values)))[1] - 1
    return np.ldexp(1.0, np.maximum(exponent, smallest) - digits)


def _most(values):
    """The largest finite |value|."""
    values = np.abs(values.astype(np.float32))
    return float(values.max(where=np.isfinite(values), initial=0.0))


def within_bound(run):
    """The library's own promise: half an ulp of the output type, 2^-24 A (8 + 2 L + S / 1024), and W A where the kernel's weights lose
    W; see docs/numerics.md. Underflow of a product or a probability, which the formula leaves out, may add S times the smallest float32
    numbers."""
    ref, dtype = run.expected, run.problem.dtype_out or run.problem.dtype
    most = max((_most(head) for sequence in run.problem.v[ref.batches] for head in sequence), default=0.0)
    with np.errstate(all="ignore"):
        largest, count = ref.largest[..., None], ref.count[..., None]
        bound = 0.5 * ulp(ref.out, dtype) + 2.0**-24 * ref.weight * (8 + 2 * largest + count / 1024) + run.result.weight_error * ref.weight
        bound = bound + count * (2.0**-148 + 2.0**-126 * most)
        out = run.out.astype(np.float64)
        top = {"f16": 65504.0}.get(dtype, 3.3e38)
        skip = ~np.isfinite(ref.out) | (np.abs(ref.out) + bound >= top) | ~np.isfinite(bound)
        bad = ~(np.abs(out - ref.out) <= bound) & ~skip & run.live()[..., None]
    if not bad.any():
        return []
    share = np.where(bad, np.abs(out - ref.out) / bound, 0)
    where = np.unravel_index(int(share.argmax()), share.shape)
    place = [int(i) for i in where]
    return [f"error bound: out{place} is {out[where]!r}, reference {ref.out[where]!r}, {share[where]:.2f} times the bound; "
            f"{int(bad.sum())} of {bad.size} elements are off"]


def lse_within_bound(run):
    """lse by the same measure: an ulp, and 2^-24 (8 + 4 L + S / 1024), errors that all scores share not cancelling here."""
    ref, lse = run.expected, run.lse.astype(np.float64)
    largest = ref.largest if run.problem.sinks is None else np.maximum(ref.largest, np.abs(run.problem.sinks)[None, :, None])
    with np.errstate(all="ignore"):
        bound = ulp(ref.lse, "f32") + 2.0**-24 * (8 + 4 * largest + ref.count / 1024)
        good = (np.abs(lse - ref.lse) <= bound) | (lse == ref.lse) | (np.isnan(lse) & np.isnan(ref.lse))
        good |= np.abs(ref.lse) > 3.4e38  # at the end of float32 the score itself may have become infinite
    bad = ~good & run.live()
    return _first(bad, lse, ref.lse, "error bound: lse") if bad.any() else []


def match_ref(run, rule):
    if run.refused():
        return run.refused()
    return close(run.out, run.expected.out, run.live(), rule["atol"], rule["rtol"]) + within_bound(run) + lse_within_bound(run)


def lse_match_ref(run, rule):
    return run.refused() or close(run.lse, run.expected.lse, run.live(), rule["atol"], rule["rtol"], "lse")


def _rows(run, rows):
    """(b, Hq, l): the live rows that a rule's `rows` names."""
    live, length, expected = run.live(), run.problem.q.shape[2], run.expected
    if rows == "all":
        return live
    if rows == "rows_without_keys":
        return run.expected.empty()
    if isinstance(rows, str) and rows.startswith("batch "):
        chosen = fills.indices(rows[len("batch "):], run.problem.q.shape[0])
        return live & np.isin(expected.batches, chosen)[:, None, None]
    comparison = re.fullmatch(r"(<=|<|>=|>|==|!=)\s*(\d+)", rows) if isinstance(rows, str) else None
    if comparison:
        return live & OPERATORS[comparison.group(1)](expected.rows, int(comparison.group(2)))
    return live & np.isin(expected.rows, rows if isinstance(rows, list) else fills.indices(rows.removeprefix("rows "), length))


def _each(run, rule, test, array, text):
    rows = _rows(run, rule.get("rows", "all"))
    flags = test(array)
    good = flags.all(axis=3) if flags.ndim == 4 else flags
    bad = rows & ~good
    if not bad.any():
        return []
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    return [f"{text}: row {list(where)} holds {array[where]!r}; {int(bad.sum())} of {int(rows.sum())} rows are off"]


def zero_rows(run, rule):
    return run.refused() or _each(run, rule, lambda a: a == 0, run.out, "not exactly 0")


def lse_neg_inf(run, rule):
    return run.refused() or _each(run, rule, lambda a: a == -np.inf, run.lse, "lse is not -inf")


def nan_rows(run, rule):
    return run.refused() or _each(run, rule, np.isnan, run.out, "not NaN")


def all_finite(run, rule):
    return run.refused() or _each(run, rule, np.isfinite, run.out, "not finite")


def error(run, rule):
    """An error, nothing written. Every code of the cases is some status of ours; which one, its text tells."""
    if run.result.status == native.OK:
        return ["success where an error was expected"]
    return list(run.result.violations)


def output_untouched(run, rule):
    changed = [name for name in ("out", "lse") if (np.ascontiguousarray(getattr(run.result, name)).view(np.uint8) != 0xFF).any()]
    return [f"{name} was written" for name in changed] + run.result.violations


def any_of(run, rule):
    wrong = []
    for part in rule["of"]:
        found = RULES[part["rule"]](run, part)
        if not found:
            return []
        wrong.append(f"{part['rule']}: {'; '.join(found)}")
    return [f"none of: {' | '.join(wrong)}"]


def no_oob(run, rule):
    """Both ends of every buffer in turn against an unmapped page. A fault ends the child, which the caller sees."""
    wrong = []
    for at_end in (True, False):
        for workspace in (True, False):
            other = run.again(at_end=at_end, workspace=workspace)
            wrong += other.violations
            if other.status != run.result.status:
                wrong.append(f"status {other.status} with buffers {'ending' if at_end else 'beginning'} at an unmapped page")
    return wrong


def no_write_outside(run, rule):
    return list(run.result.violations)


def bitwise_repeat(run, rule):
    """Repeats in the same buffers; outputs (and a caller's workspace) are NaN before each."""
    whole = call.uniform(run.problem)
    ready = call.Prepared(run.target.context(run.config), whole, run.layout, run.config)
    first = ready.call()
    for n in range(2 if run.light else int(rule.get("n", 2)) - 1):
        differ = first.bits_differ(ready.call())
        if differ:
            return [f"call {n + 2}: {differ}"]
    return run.refused() or (["the repeats differ from the first call"] if first.bits_differ(run.result) else [])


def _replaced(problem, what, test):
    """The problem with the keys (rows, batches, heads) that pass the test replaced by other random values."""
    generator = np.random.default_rng(20031)
    axis = 0 if what.startswith("batch") else 1 if what.endswith("heads") else 2
    names = ("q",) if what.startswith("row") else ("k", "v") if what.startswith(("key", "kv", "head")) else ("q", "k", "v")
    changed = {}
    for name in names:
        array = getattr(problem, name).copy()
        flags = test(np.arange(array.shape[axis]))
        shape = [1] * 4
        shape[axis] = -1
        noise = fills.rounded(generator.standard_normal(array.shape) * 3, problem.dtype)
        changed[name] = np.where(flags.reshape(shape), noise, array).astype(array.dtype)
    return problem.replace(**changed)


WHAT = r"(keys?|rows?|batches|batch rows?|batch|heads|kv heads)"


def _selector(text, j):
    """'< j' or 'a:b' as a test of index arrays."""
    match = re.fullmatch(r"(<=|<|>=|>|==|!=)\s*(j|\d+)", text)
    if match:
        bound = j if match.group(2) == "j" else int(match.group(2))
        return lambda index: OPERATORS[match.group(1)](index, bound)
    if not re.fullmatch(r"[-\d:, ]+", text):
        raise fills.UnknownRule(f"rows '{text}'")
    return lambda index: np.isin(index, fills.indices(text, index.size))


def bitwise_same_rows(run, rule):
    """rows "< j" keep their bits when "keys >= j replaced", for each j; also with spans: rows "batch 0" when "batch 1:4 replaced"."""
    when = re.fullmatch(WHAT + r" (.+?) replaced", rule["when"])
    if not when:
        raise fills.UnknownRule(f"bitwise_same_rows when '{rule['when']}'")
    wrong, rows = run.refused(), str(rule["rows"]).removeprefix("rows ")
    axis = 0 if rows.startswith("batch") else 2
    rows = re.sub(r"^batch(es)? ", "", rows)
    for j in rule.get("j", [None]):
        other = run.again(problem=_replaced(run.problem, when.group(1), _selector(when.group(2), j)))
        flags = _selector(rows, j)(np.arange(run.problem.q.shape[axis]))
        cut = lambda r: call.Result(r.status, np.compress(flags, r.out, axis), np.compress(flags, r.lse, axis))
        differ = cut(run.result).bits_differ(cut(other))
        if differ:
            wrong.append(f"j = {j}: {differ}")
    return wrong


def bitwise_same_or_close(run, rule):
    """over "threads 1,2,3": this library promises equal bits for threads, passes and batches; for the rest the rule's tolerance decides."""
    name, values = rule["over"].split(" ", 1)
    wrong, first = run.refused(), None
    for text in values.split(","):
        value = int(text)
        if name in ("threads", "passes", "chunk"):
            result = run.again(**{name: value})
        elif name in ("num_splits", "splits"):
            result = call.forward(run.target, run.problem, run.layout, variants.splits(run.problem, value, run.config))
        elif name in ("batch", "batches", "B"):  # the first sequence by itself, in twos, ...
            result = run.again(problem=run.problem.batches(0, value))
            result.out, result.lse = result.out[:1], result.lse[:1]
            first = first or call.Result(0, run.result.out[:1], run.result.lse[:1])
        else:
            raise fills.UnknownRule(f"bitwise_same_or_close over '{rule['over']}'")
        first = first or result
        differ = first.bits_differ(result)
        if differ and name not in ("chunk", "num_splits", "splits"):
            wrong.append(f"{name} {value}: {differ}")
        elif differ:
            tolerance = rule.get("atol", 0), rule.get("rtol", 0)
            part = run.expected.of
            wrong += close(part(result.out), part(first.out).astype(np.float64), run.live(), *tolerance, f"{name} {value}: out")
    return wrong


def close_to_variant(run, rule):
    variant = variants.read(run.case, run.problem, rule["variant"], run.config)
    other = variants.run(run.target, variant)
    if other.status != native.OK:
        return [f"variant '{rule['variant']}': {run.target.library.text(other.status)}"]
    rows, base = variant.rows, variant.base_rows
    live = np.broadcast_to(np.arange(run.problem.q.shape[2]) < run.problem.lengths_q()[:, None, None], run.result.lse.shape)[:, :, base]
    wrong = close(run.result.out[:, :, base], other.out[:, :, rows].astype(np.float64), live, rule.get("atol", 0), rule.get("rtol", 0),
                  f"against '{rule['variant']}': out")
    return run.refused() or wrong + other.violations


def _documented(run, rule):
    """The public header has a sentence about what the case does. Where that sentence promises an error, the rule `error` must do."""
    text = " ".join(native.HEADER.read_text().replace("\n *", "\n").split())
    sentences = {
        "api": "A call that fails has written nothing",
        "threads": "Calls on one context from several threads are safe", "masked-row": "A row that sees nothing: out = 0, lse = -inf",
        "poison": "What is invisible never changes a bit", "nan-propagation": "A NaN or Inf in a visible key reaches the rows that see it",
        "determinism": "not on threads, passes, or the other sequences", "causal-align": "d = offset + (align is bottom-right",
        "softcap": "with a softcap c > 0", "sinks": "one more score a row, that has no value", "empty": "count 0 gives out = 0, lse = -inf",
    }
    sentence = sentences.get(run.case["kind"])
    return [] if sentence and sentence in text else [f"nothing in the header for kind '{run.case['kind']}'"]


RULES = {
    "match_ref": match_ref, "lse_match_ref": lse_match_ref, "zero_rows": zero_rows, "lse_neg_inf": lse_neg_inf, "nan_rows": nan_rows,
    "all_finite": all_finite, "error": error, "any_of": any_of, "no_oob": no_oob, "no_fault": no_oob, "no_write_outside": no_write_outside,
    "bitwise_repeat": bitwise_repeat, "bitwise_same_rows": bitwise_same_rows, "bitwise_same_or_close": bitwise_same_or_close,
    "close_to_variant": close_to_variant, "output_untouched": output_untouched, "documented": _documented,
    "ok_empty": procedures.ok_empty, "merge_parts": procedures.merge_parts, "merge_values": procedures.merge_values,
    "rss_growth_max": procedures.rss_growth_max, "thread_count_restored": procedures.thread_count_restored,
    "scratch_max": procedures.scratch_max, "completes_within": procedures.completes_within, "race_free": procedures.race_free,
    "fp_env_unchanged": procedures.fp_env_unchanged, "query_equals_call": procedures.query_equals_call,
}
ONCE = {"rss_growth_max", "thread_count_restored", "scratch_max", "merge_values"}  # these choose their own configuration
TIMED = {"time_ratio"}  # only on request: see test_perf.py
