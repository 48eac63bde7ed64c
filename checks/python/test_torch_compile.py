"""libattn.torch in graphs: the operator libattn::attention by PyTorch's own checks of operators, torch.compile and torch.export."""
import math

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import bias

import libattn.torch
from libattn.torch import scaled_dot_product_attention as sdpa
from sdpa import assert_exact, left, original, taken, unrouted

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
operator = torch.ops.libattn.attention


@pytest.fixture(autouse=True)
def fresh(unrouted):
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def rows_outside(x):
    """Heads inside rows in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def inputs(heads=3, rows=5, keys=7, dim_v=8):
    return torch.randn(2, heads, rows, 8), torch.randn(2, 3, keys, 8), torch.randn(2, 3, keys, dim_v)


q, k, v = inputs()
wide, flat = inputs(heads=6), tuple(x[0, 0] for x in inputs())
CALLS = {  # as the operator takes them
    "plain": (q, k, v, None, False, None, False), "causal": (q, k, v, None, True, 0.3, False),
    "float mask": (q, k, v, torch.randn(5, 7), False, None, False), "bool mask": (q, k, v, torch.rand(2, 1, 5, 7) < 0.7, False, 0.0, False),
    "expanded mask": (q, k, v, torch.randn(2, 1, 1, 7).expand(2, 3, 5, 7), False, None, False),
    "mask of 3 axes": (rows_outside(q), k, v, torch.randn(3, 5, 7), False, None, False), "groups": (*wide, None, True, None, True),
    "rows outside": (*map(rows_outside, wide), None, False, None, True),
    "other order": (q.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3), k, v, None, False, None, False),
    "last axis": (rows_outside(q), k.mT.contiguous().mT, v, None, False, None, False),
    "dim_v": (rows_outside(q), *inputs(dim_v=4)[1:], None, False, None, False), "2 axes": (*flat, None, False, None, False),
    "broadcast": (q, k[:1], v[:, :1], None, False, None, False),
    "half": (*(x.half() for x in (q, k, v)), torch.randn(5, 7), False, None, False),
    "bfloat16": (*(rows_outside(x.bfloat16()) for x in (q, k, v)), None, True, None, False)}
MORE = {  # what only the operator has, and what it leaves to PyTorch's operations when it runs
    "softcap": (*CALLS["plain"], 2.0), "window and sinks": (*CALLS["causal"], 0.0, 3, torch.randn(3)),
    "causal and mask": (q, k, v, torch.randn(5, 7), True, None, False), "no keys": (q, k[:, :, :0], v[:, :, :0], None, False, None, False),
    "double": (*(rows_outside(x.double()) for x in (q, k, v)), None, False, None, False)}


@pytest.mark.parametrize("name", [*CALLS, *MORE])
def test_operator(name):
    """Schema, registration, shapes and strides of the fake kernel, and tracing with symbols for sizes."""
    args = {**CALLS, **MORE}[name]
    assert set(torch.library.opcheck(operator.default, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", CALLS)
def test_operator_is_the_function(name):
    args = CALLS[name]
    assert_exact(taken(operator, *args), *args)
    out, theirs = (function(*args[:4], 0.0, args[4], scale=args[5], enable_gqa=args[6]) for function in (sdpa, original))
    meta = operator(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in args))
    assert torch.equal(operator(*args), out) and operator(*args).stride() == out.stride() == meta.stride() == theirs.stride()


def test_operator_leaves_to_pytorch():
    args = MORE["double"]
    out = left("dtype torch.float64", operator, *args)
    torch.testing.assert_close(out, original(*args[:3]))
    assert out.stride() == original(*args[:3]).stride()


def test_operator_has_no_gradient():
    """Nothing traces it where one is wanted. Who calls it all the same is told."""
    out = operator(q.clone().requires_grad_(), k, v, None, False, None, False)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        out.sum().backward()


def direct(*args, **options):
    """Something before and after, so that there is a graph."""
    return sdpa(args[0] * 1.0, *args[1:], **options) + 1


def looked_up(*args, **options):
    return F.scaled_dot_product_attention(args[0] * 1.0, *args[1:], **options) + 1


def compiled(function, backend, **options):
    """The compiled function, in one graph, and the counter of compilations."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, fullgraph=True, **options), counter


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CALLS)
def test_compile(name, backend):
    query, key, value, mask, causal, scale, gqa = CALLS[name]
    args, options = (query, key, value, mask), {"is_causal": causal, "scale": scale, "enable_gqa": gqa}
    expected = direct(*args, **options)
    for function in (direct, looked_up):
        program, counter = compiled(function, backend)
        with libattn.torch.installed():
            for _ in range(2):
                out = taken(program, *args, **options)
                assert torch.equal(out, expected) and out.stride() == expected.stride()
        assert counter.frame_count == 1


def test_compile_without_routing():
    program, _ = compiled(looked_up, "eager")
    program(q, k, v)
    assert libattn.torch.stats() == {"taken": 0, "left": {}}
    with libattn.torch.installed():  # is noticed
        taken(program, q, k, v)
    libattn.torch.reset_stats()
    assert torch.equal(program(q, k, v), looked_up(q, k, v)) and libattn.torch.stats()["taken"] == 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("mark", [False, True])
def test_one_graph_for_many_lengths(backend, mark):
    program, _ = compiled(direct, backend, **({} if mark else {"dynamic": True}))
    def call(batch, rows, keys):
        tensors = [torch.randn(batch, 3, n, 8) for n in (rows, keys, keys)]
        mask = torch.randn(batch, 1, rows, keys)
        for x, axes in zip((*tensors, mask), ((0, 2), (0, 2), (0, 2), (0, 2, 3))):
            for axis in axes if mark else ():
                torch._dynamo.mark_dynamic(x, axis)
        assert torch.equal(taken(program, *tensors, mask), direct(*tensors, mask))
    call(2, 5, 7)
    with torch._dynamo.config.patch(error_on_recompile=True):
        call(3, 9, 4)
        call(5, 4, 12)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_with_gradients(backend):
    """PyTorch's own, forward and backward; without gradients the same function is libattn's."""
    program, _ = compiled(direct, backend)
    grads = []
    for function in (program, lambda *x: original(*x) + 1):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        libattn.torch.reset_stats()
        function(*leaves).square().sum().backward()
        assert libattn.torch.stats() == {"taken": 0, "left": {}}
        grads.append([x.grad for x in leaves])
    torch.testing.assert_close(*grads)
    with torch.no_grad():
        taken(program, *leaves)
    with torch.inference_mode():
        taken(program, q, k, v)


def test_what_a_graph_leaves_to_pytorch():
    """Told while tracing, so nothing is counted."""
    both = (q, k, v, torch.zeros(5, 7))
    for args, options in (([x.double() for x in (q, k, v)], {}), ((q, k, v, None, 0.5), {}), (both, {"is_causal": True})):
        program, _ = compiled(looked_up, "eager")
        results = []
        for call in (program, looked_up):
            torch.manual_seed(1)
            libattn.torch.reset_stats()
            if call is program:
                with libattn.torch.installed():
                    results.append(call(*args, **options))
                assert libattn.torch.stats() == {"taken": 0, "left": {}}
            else:
                results.append(call(*args, **options))
        assert torch.equal(*results)
    with torch.autocast("cpu", torch.bfloat16), libattn.torch.installed():
        libattn.torch.reset_stats()
        out = compiled(lambda *x: F.scaled_dot_product_attention(*x), "eager")[0](q, k, v)
        assert out.dtype == torch.bfloat16 and libattn.torch.stats() == {"taken": 0, "left": {}}


@pytest.mark.parametrize("keys", [5, 7])
def test_compile_causal_bias(keys):
    key, value = torch.randn(2, 2, 3, keys, 8)
    for make, diagonal in ((bias.causal_upper_left, 0), (bias.causal_lower_right, keys - 5)):
        for function in (direct, looked_up):
            torch._dynamo.reset()
            program = torch.compile(function, backend="eager")
            with libattn.torch.installed():
                out = program(q, key, value, make(5, keys)) - 1
            torch.testing.assert_close(out, original(q, key, value, torch.ones(5, keys, dtype=torch.bool).tril(diagonal)))


class Block(torch.nn.Module):
    """A layer's attention: projections, heads inside rows, grouped, masked."""

    def __init__(self):
        super().__init__()
        self.project, self.out = torch.nn.Linear(32, 32 + 2 * 16), torch.nn.Linear(32, 32)

    def forward(self, x, mask):
        query, key, value = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in self.project(x).split((32, 16, 16), -1))
        out = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
        return self.out(out.transpose(1, 2).flatten(2))


def block_inputs(batch, rows):
    return torch.randn(batch, rows, 32), torch.zeros(batch, 1, rows, rows).masked_fill(torch.ones(rows, rows).triu(1) > 0, -math.inf)


@pytest.fixture
def inductor_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def test_inductor(inductor_cache):
    """Compiled to C++, which checks the strides that the fake kernel promised. A second length makes sizes symbols."""
    block = Block().eval()
    with torch.no_grad():
        expected = [block(*block_inputs(2, rows)) for rows in (6, 9, 13) if torch.manual_seed(rows)]
        program, counter = compiled(block, "inductor")
        with libattn.torch.installed():
            for rows, wanted in zip((6, 9, 13), expected):
                torch.manual_seed(rows)
                torch.testing.assert_close(taken(program, *block_inputs(2, rows)), wanted)
        assert counter.frame_count == 2


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    """The program has the operator, for any length, and runs without routing."""
    block = Block().eval()
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=512)
    with torch.no_grad(), libattn.torch.installed():
        program = torch.export.export(block, block_inputs(2, 6), strict=strict,
                                      dynamic_shapes=({0: batch, 1: length}, {0: batch, 2: length, 3: length}))
    assert [node.target for node in program.graph.nodes].count(operator.default) == 1
    given = block_inputs(3, 11)
    with torch.no_grad():
        torch.testing.assert_close(taken(program.module(), *given), block(*given))


def test_export_with_a_size_that_data_decides():
    """The batch is known only when the program runs, and so is the mask's."""
    class Kept(torch.nn.Module):
        def forward(self, x):
            x = x[x.sum((1, 2, 3)) != 0]
            return F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones((x.shape[0], 1, 1, 1), dtype=torch.bool))
    x = torch.randn(4, 2, 5, 8)
    x[1] = 0
    with libattn.torch.installed():
        program = torch.export.export(Kept(), (x,))
    out = taken(program.module(), x)
    assert out.shape == (3, 2, 5, 8)
    assert_exact(out, *[x[[0, 2, 3]]] * 3)
