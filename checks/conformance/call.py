"""Turns a Problem into calls of the C API and looks, after each, at every byte that the call had no business with."""
import dataclasses

import numpy as np

import fills
import native
import regions
import remote
import tensors

TYPES = {"f32": native.F32, "f16": native.F16, "bf16": native.BF16}
NUMPY_TYPES = {np.dtype(fills.DTYPES[name]): code for name, code in TYPES.items()} | {np.dtype(np.bool_): native.BOOL}


@dataclasses.dataclass(frozen=True)
class Config:
    """How a problem is run. The defaults are a plain call."""
    passes: int = 0
    chunk: int = 0
    threads: int = 0
    at_end: bool = True       # tensors end at an unmapped page; False: begin after one
    workspace: bool = False   # the caller's, exactly as large as asked for and full of NaN

    def __str__(self):
        words = [f"{name}={value}" for name, value in (("passes", self.passes), ("chunk", self.chunk), ("threads", self.threads)) if value]
        return " ".join(words + ["at the end" if self.at_end else "at the start"] + ["own workspace"] * self.workspace)


@dataclasses.dataclass
class Result:
    status: int
    out: np.ndarray = None       # logical, in its storage type
    lse: np.ndarray = None
    violations: list = dataclasses.field(default_factory=list)  # bytes changed that were not the call's
    weight_error: float = 0.0    # attn_explain's: what the error bound grows by

    def bits_differ(self, other, rows=slice(None)):
        """None, or where out or lse differ in a bit. Two NaN are the same, whatever their payload."""
        for name in ("out", "lse"):
            a, b = getattr(self, name)[:, :, rows], getattr(other, name)[:, :, rows]
            if a.tobytes() == b.tobytes():
                continue
            whole = np.dtype(f"u{a.dtype.itemsize}")
            same = (np.ascontiguousarray(a).view(whole) == np.ascontiguousarray(b).view(whole)) | (np.isnan(a) & np.isnan(b))
            if not same.all():
                where = tuple(int(i) for i in np.argwhere(~same)[0])
                return f"{name}{list(where)}: {a[where]} and {b[where]}, {int((~same).sum())} of {same.size} differ"
        return None


class Target:
    """A library, one device and one ISA of it; keeps its contexts, one for each set of options. mirrored: calls go by copies in the
    device's memory, as they must where that is not the host's."""

    def __init__(self, library, name, device, isa=None, mirrored=False):
        self.library, self.name, self.device, self.isa, self.mirrored = library, name, device, isa, mirrored
        self.forks = device != native.CUDA  # whose driver does not work in a child
        self.contexts = {}

    def open(self, config=Config()):
        kind = remote.Context if self.mirrored else native.Context
        return kind(self.library, device=self.device, isa=self.isa, threads=config.threads, passes=config.passes, chunk=config.chunk)

    def context(self, config):
        key = (config.passes, config.chunk, config.threads)
        if key not in self.contexts:
            self.contexts[key] = self.open(config)
        return self.contexts[key]


class Prepared:
    """A problem in memory, ready to be called again and again."""

    def __init__(self, context, problem, layout=None, config=Config()):
        layout = layout or {}
        self.context, self.problem, self.config = context, problem, config
        self.dtype_out = problem.dtype_out or problem.dtype
        at_end = config.at_end
        self.inputs = tensors.place_inputs(problem, layout, at_end)
        self.out, self.lse = tensors.place_outputs(problem, self.dtype_out, layout, self.inputs, at_end)
        self.vectors = {name: regions.vector(getattr(problem, name), dtype, at_end)
                        for name, dtype in (("sinks", np.float32), ("slopes", np.float32), ("len_q", np.int32), ("len_kv", np.int32))}
        self.before = self.out.region.bytes.copy() if "alias" in layout.get("out", {}) else None
        self.c_problem = self._describe()
        self.workspace = None

    def _describe(self):
        problem = self.problem
        B, Hq, Hkv, Lq, Lk, D, Dv = problem.sizes
        c = self.context.problem(native.BHLD, TYPES[problem.dtype], B, Hq, Hkv, Lq, Lk, D)
        c.dim_v, c.type_out = Dv, TYPES[self.dtype_out]
        c.type_q, c.type_k, c.type_v = (NUMPY_TYPES[array.dtype] for array in (problem.q, problem.k, problem.v))
        for name, tensor in [*((n, self.inputs[n]) for n in ("q", "k", "v")), ("out", self.out), ("lse", self.lse)]:
            strides = getattr(c, name)
            strides.batch, strides.head, strides.row = (tensor.strides[axis] for axis in "BHL")
        if problem.scale is not None:
            c.scale = problem.scale
        c.softcap = problem.softcap
        c.align = native.BOTTOM_RIGHT if problem.bottom_right else native.TOP_LEFT
        c.offset, c.left, c.right = int(problem.offset), problem.left, problem.right
        if "mask" in self.inputs:
            c.type_mask = NUMPY_TYPES[problem.mask.dtype]
            c.mask.batch, c.mask.head, c.mask.row, c.mask.key = (self.inputs["mask"].strides[axis] for axis in "BHLK")
        return c

    def _args(self):
        args = native.stamped(native.Args)
        for name, tensor in [*self.inputs.items(), ("out", self.out), ("lse", self.lse)]:
            setattr(args, name, tensor.address)
        for name, region in self.vectors.items():
            setattr(args, name, region.address if region else None)
        return args

    def give_workspace(self, args):
        """A workspace of exactly the size asked for, full of NaN, between guard pages."""
        if self.workspace is None:
            size = self.context.workspace(self.c_problem)
            self.workspace = regions.Region(size, at_end=self.config.at_end and size % 64 == 0)
        if not self.workspace.sparse:
            self.workspace.whole[...] = regions.PATTERN
        args.workspace, args.workspace_size = self.workspace.address, self.workspace.size

    def begin(self):
        """The arguments of a call; the outputs, and a caller's workspace, hold PATTERN before it."""
        if self.before is None:
            for tensor in (self.out, self.lse):
                if not tensor.region.sparse:
                    tensor.view[...] = np.frombuffer(bytes([regions.PATTERN]) * tensor.view.itemsize, tensor.view.dtype)[0]
        args = self._args()
        if self.config.workspace and self.context.accepts(self.c_problem):
            self.give_workspace(args)
        return args

    def collect(self, status):
        """What a call left behind."""
        result = Result(status, np.array(self.out.view), np.array(self.lse.view))
        if status == native.OK:
            result.weight_error = self.context.explain(self.c_problem).weight_error
        self._inspect(result)
        return result

    def call(self):
        """One forward."""
        args = self.begin()
        return self.collect(self.context.forward(self.c_problem, args))

    def _inspect(self, result):
        if self.before is not None:
            if result.status != native.OK and (self.before != self.out.region.bytes).any():
                result.violations.append("out was written although the call failed")
            return
        for name, tensor in (("out", self.out), ("lse", self.lse)):
            if tensor.stray():
                result.violations.append(f"{name}: bytes between or beside its rows were written")
            if result.status != native.OK and tensor.written():
                result.violations.append(f"{name} was written although the call failed")
        lengths = self.problem.lengths_q()
        if result.status == native.OK and self.problem.len_q is not None:
            for b, length in enumerate(lengths):
                for name, array in (("out", result.out), ("lse", result.lse)):
                    if (np.ascontiguousarray(array[b, :, length:]).view(np.uint8) != regions.PATTERN).any():
                        result.violations.append(f"{name}: rows at or past len_q[{b}] = {length} were written")


def uniform(problem):
    """The same problem with one offset for all sequences, as the API has it; None where they differ."""
    if not isinstance(problem.offset, list):
        return problem
    values = set(problem.offset)
    if len(values) <= 1:
        return problem.replace(offset=values.pop() if values else 0)
    return None


def forward(target, problem, layout=None, config=Config()):
    """One problem, once. Where its sequences differ in a way that one call cannot say, one call for each."""
    whole = uniform(problem)
    context = target.context(config)
    if whole is not None:
        return Prepared(context, whole, layout, config).call()
    parts = [Prepared(context, uniform(problem.batches(b, b + 1)), layout, config).call() for b in range(problem.q.shape[0])]
    failed = [part.status for part in parts if part.status != native.OK]
    return Result(failed[0] if failed else native.OK, np.concatenate([part.out for part in parts]),
                  np.concatenate([part.lse for part in parts]), sum((part.violations for part in parts), []),
                  max(part.weight_error for part in parts))


def merge(context, states, like, dtype_out):
    """Merges [(out, lse), ...] of shapes (B, H, L, D) and (B, H, L), float32; like: a Problem with the same B, Hq, Lq, Dv."""
    placed = [(regions.vector(out.reshape(-1), np.float32), regions.vector(lse.reshape(-1), np.float32)) for out, lse in states]
    problem = like.replace(mask=None, len_kv=None, offset=0, left=-1, right=-1, bottom_right=False, dtype_out=dtype_out)
    ready = Prepared(context, problem)
    args = ready.begin()
    return ready.collect(context.merge(ready.c_problem, [(out.address, lse.address) for out, lse in placed], args))
