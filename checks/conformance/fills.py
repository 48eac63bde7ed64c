"""The generation rules of reports.json: tensors, masks, sinks and slopes out of a seed and a few words."""
import ast
import functools

import ml_dtypes
import numpy as np

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "bool": np.bool_}
CHUNK = 1 << 22  # drawn at a time, so that a tensor of many GB needs no float64 copy of itself


class UnknownRule(Exception):
    """A word that this reader does not know: a failure, since what it says would go untested."""


def rounded(values, dtype):
    """Round float64 to a storage type; what is too large becomes an infinity, without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, dtype=np.float64).astype(DTYPES[dtype])


def span(text, length):
    """'a:b', 'a:', 'a' or an index, as a range clipped to length."""
    if isinstance(text, (list, tuple)):
        return [int(i) for i in text]
    text = str(text)
    if ":" not in text:
        i = int(text)
        return range(i, i + 1) if i >= 0 else range(length + i, length + i + 1)
    first, last = text.split(":")
    return range(*slice(int(first) if first else None, int(last) if last else None).indices(length))


def indices(text, length):
    """A comma-separated list of spans."""
    return sorted({i for part in str(text).split(",") for i in span(part.strip(), length)})


def _fill_component(out, words, dtype):
    """Rules that set one component and leave the others to a second rule (or to 0)."""
    name, dim = words[0], out.shape[-1]
    at = 0 if name.startswith("first") else dim - 1
    if name.endswith("_ramp"):
        out[...] = 0
        values = float(words[1]) * np.arange(out.shape[-2]) + float(words[2])
        out[..., at] = rounded(values, dtype)
        return
    value = words[1]
    if len(words) > 2:
        if words[2] != "normal":  # normal values were drawn into out already
            _fill_plain(out, words[2:], dtype)
    else:
        out[...] = 0
    out[..., at] = rounded(float(value), dtype)


def _fill_plain(out, words, dtype):
    """Rules that need no random numbers."""
    keys, name = out.shape[-2], words[0]
    numbers = [float(w) for w in words[1:]] if name not in ("first_component", "last_component") else []
    if name == "const":
        out[...] = rounded(numbers[0], dtype)
    elif name == "alternate":
        signs = np.where(np.arange(keys) % 2 == 0, 1.0, -1.0)
        out[...] = rounded(numbers[0] * signs, dtype)[:, None]
    elif name == "head_index":
        out[...] = rounded(np.arange(out.shape[1]), dtype)[:, None, None]
    elif name == "key_index":
        out[...] = rounded(np.arange(keys) * (numbers[0] if numbers else 1.0), dtype)[:, None]
    elif name == "key_ramp":
        out[...] = rounded(np.arange(keys) * numbers[0] + numbers[1], dtype)[:, None]
    elif name.startswith(("first_component", "last_component")):
        _fill_component(out, words, dtype)
    else:
        raise UnknownRule(f"input rule '{' '.join(words)}'")


def draw(generator, shape, rule, dtype):
    """One tensor. The generator always gives the full shape's normals, also where the rule does not use them."""
    words = rule.split()
    normal = words[words.index("normal") + 1:][:2] if "normal" in words else None
    out = np.empty(shape, DTYPES[dtype])
    flat = out.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        values = generator.standard_normal(min(CHUNK, flat.size - start))
        if normal:
            values *= float(normal[1])
            values += float(normal[0])
            flat[start:start + values.size] = rounded(values, dtype)
    if words[0] != "normal":
        _fill_plain(out, words, dtype)
    return out


def slopes(text, heads):
    """ALiBi slopes: 'power_of_two N [take n]' is 2^(-8 i / N) for i = 1 .. n; 'list a,b,...'; 'const c'."""
    if text is None:
        return None
    words = text.split()
    if words[0] == "power_of_two":
        total = int(words[1])
        take = int(words[3]) if len(words) > 3 and words[2] == "take" else heads
        values = 2.0 ** (-8.0 * np.arange(1, take + 1) / total)
    elif words[0] == "list":
        values = np.array([float(v) for v in words[1].split(",")])
    elif words[0] == "const":
        values = np.full(heads, float(words[1]))
    else:
        raise UnknownRule(f"slopes '{text}'")
    if values.size != heads:
        raise UnknownRule(f"slopes '{text}' for {heads} heads")
    return values.astype(np.float32)


def sinks(generator, text, heads):
    if text is None:
        return None
    words = text.split()
    if words[0] == "normal":
        values = generator.standard_normal(heads) * float(words[2]) + float(words[1])
    elif words[0] == "const":
        values = np.full(heads, float(words[1]))
    elif words[0] == "list":
        values = np.array([float(v) for v in words[1].split(",")])
    else:
        raise UnknownRule(f"sinks '{text}'")
    return values.astype(np.float32)


_OPERATORS = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.FloorDiv: np.floor_divide, ast.Mod: np.mod,
    ast.BitAnd: np.bitwise_and, ast.BitOr: np.bitwise_or, ast.And: np.logical_and, ast.Or: np.logical_or, ast.Not: np.logical_not,
    ast.USub: np.negative, ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal, ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


def _expression(node, names):
    """Arithmetic and comparisons of i, j, b and h on index arrays; the text is data, so nothing else is evaluated."""
    if isinstance(node, ast.Expression):
        return _expression(node.body, names)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_expression(node.left, names), _expression(node.right, names))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_expression(node.operand, names))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "abs":
        return np.abs(_expression(node.args[0], names))
    if isinstance(node, ast.BoolOp):
        return functools.reduce(_OPERATORS[type(node.op)], [_expression(part, names) for part in node.values])
    if isinstance(node, ast.Compare):  # a < b < c is (a < b) and (b < c)
        sides = [_expression(side, names) for side in [node.left, *node.comparators]]
        return functools.reduce(np.logical_and, [_OPERATORS[type(op)](sides[n], sides[n + 1]) for n, op in enumerate(node.ops)])
    raise UnknownRule(f"expression {ast.dump(node)}")


class MaskTerms:
    """Joins the terms of one fill text into (keep, values): keep False hides, values is what visible entries hold (additive only)."""

    def __init__(self, generator, shape):
        self.generator, self.shape = generator, tuple(shape)
        full = (1,) * (4 - len(shape)) + self.shape
        self.batch, self.heads, self.rows, self.keys = full
        self.keep = np.ones(full, bool)
        self.values = None
        self.b, self.h, self.i, self.j = np.ogrid[:full[0], :full[1], :full[2], :full[3]]

    def add(self, term):
        words = term.split()
        if "else" in words:
            at = words.index("else")
            self.values = np.full(self.keep.shape, float(words[at + 1]))
            words = words[:at] + words[at + 2:]
        if words:
            method = getattr(self, "term_" + words[0], None)
            if method is None:
                raise UnknownRule(f"mask fill '{term}'")
            method(words)

    def hide(self, hidden):
        self.keep &= ~hidden

    def inside(self, index, text, length):
        flags = np.zeros(length, bool)
        flags[indices(text, length)] = True
        return flags[index]

    def block(self, words):
        """off_rows a:b, off_keys a:b and only_batch n in one term hide their intersection."""
        hidden = np.ones((1, 1, 1, 1), bool)
        for name, text in zip(words[0::2], words[1::2]):
            if name in ("off_rows", "rows"):
                hidden = hidden & self.inside(self.i, text, self.rows)
            elif name in ("off_keys", "keys"):
                hidden = hidden & self.inside(self.j, text, self.keys)
            elif name == "only_batch":
                hidden = hidden & (self.b == int(text))
            elif name == "only_head":
                hidden = hidden & (self.h == int(text))
            else:
                raise UnknownRule(f"mask fill '{' '.join(words)}'")
        self.hide(hidden)

    term_off_rows = term_off_keys = block

    def term_off_block(self, words):
        self.block(["off_rows", words[1], "off_keys", words[2], *words[3:]])

    def term_keep_all(self, words):
        pass

    def term_off_all(self, words):
        self.keep[...] = False

    def term_keep_keys(self, words):
        self.hide(~self.inside(self.j, words[1], self.keys))

    term_keep_list = term_keep_keys

    def term_keep_rows(self, words):
        self.hide(~self.inside(self.i, words[1], self.rows))

    def pads(self, text):
        values = np.array([int(v) for v in text.split(",")])
        return values[self.b % values.size]

    def term_left_pad(self, words):
        self.hide(self.j < self.pads(words[1]))

    def term_right_pad(self, words):
        self.hide(self.j >= self.keys - self.pads(words[1]))

    def term_causal(self, words):
        offset = self.keys - self.rows if words[1] == "bottom-right" else 0
        for start in range(0, self.rows, 1024):  # by rows: a square of 65537 would otherwise need three such arrays
            part = self.i[:, :, start:start + 1024]
            self.keep[:, :, start:start + 1024] &= self.j <= part + offset

    def term_band(self, words):
        back = int(words[1].split("=")[1])
        self.hide(~((self.i - back < self.j) & (self.j <= self.i)))

    def term_keep_if(self, words):
        tree = ast.parse(" ".join(words[1:]), mode="eval")
        self.hide(~_expression(tree, {"i": self.i, "j": self.j, "b": self.b, "h": self.h}))

    def term_random_keep(self, words):
        self.keep &= (self.generator.random(self.shape) < float(words[1])).reshape(self.keep.shape)

    def term_normal(self, words):
        values = self.generator.standard_normal(self.shape) * float(words[2]) + float(words[1])
        self.values = values.reshape(self.keep.shape)

    def term_const(self, words):
        self.values = np.full(self.keep.shape, float(words[1]))

    def term_per_head(self, words):
        values = np.array([float(v) for v in words[1].split(",")]) if len(words) > 1 else np.arange(self.heads, dtype=float)
        self.values = np.broadcast_to(values[self.h % values.size], self.keep.shape).copy()

    def term_ones_block(self, words):
        self.values = np.zeros(self.keep.shape)
        self.values[:, :, indices(words[1], self.rows)[0]:indices(words[1], self.rows)[-1] + 1, indices(words[2], self.keys)] = 1.0


def mask(generator, description):
    """The mask in its own shape: bool (True: takes part) or its additive storage type. None where there is none."""
    if description is None:
        return None
    terms = MaskTerms(generator, description["shape"])
    for term in description["fill"].split("&"):
        terms.add(term.strip())
    shape = tuple(description["shape"])
    if description["kind"] == "bool":
        return terms.keep.reshape(shape)
    values = terms.values if terms.values is not None else np.zeros(terms.keep.shape)
    values = np.where(terms.keep, values, float(description.get("off", "-inf")))
    return rounded(values, description["dtype"]).reshape(shape)
