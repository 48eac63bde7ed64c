"""libattn.torch in the place of torch.nn.functional's function: install, uninstall, installed; stats; threads; the layers of torch.nn."""
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import bias

import libattn.torch
from libattn.torch import scaled_dot_product_attention as sdpa
from sdpa import assert_exact, left, original, plain, taken, unrouted


def routed(plain):
    """Whether torch.nn.functional's function goes through libattn now."""
    libattn.torch.reset_stats()
    F.scaled_dot_product_attention(*plain)
    return libattn.torch.stats()["taken"] == 1


def test_install(plain):
    assert not routed(plain)
    libattn.torch.install()
    libattn.torch.install()
    try:
        assert routed(plain) and F.scaled_dot_product_attention.__name__ == original.__name__
        with libattn.torch.installed():
            libattn.torch.uninstall()
            assert routed(plain)
        assert not routed(plain) and F.scaled_dot_product_attention is original
        libattn.torch.install()
        with libattn.torch.installed(), libattn.torch.installed():
            assert routed(plain)
        assert routed(plain)
    finally:
        libattn.torch.uninstall()
        libattn.torch.uninstall()
    assert not routed(plain)


def test_pickled_while_routed():
    """As what is sent to a process, or a model that keeps the function, is. There it is whatever stands in its place."""
    with libattn.torch.installed():
        pickled = pickle.dumps(F.scaled_dot_product_attention)
        assert pickle.loads(pickled) is F.scaled_dot_product_attention
    assert pickle.loads(pickled) is original


def test_blocks_overlap(plain):
    """As those of two threads do: the last to end unroutes."""
    first, second = libattn.torch.installed(), libattn.torch.installed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert routed(plain)
    second.__exit__(None, None, None)
    assert not routed(plain)


def test_installed_ends_with_an_exception(plain):
    with pytest.raises(KeyError):
        with libattn.torch.installed():
            raise KeyError
    assert not routed(plain)


@pytest.mark.parametrize("again", [False, True])
def test_another_patch_over_ours(plain, monkeypatch, again):
    """It stays, and calls what it found. Ours then goes above it once more, or not; in the end nothing is taken."""
    doubles = tuple(x.double() for x in plain)
    with libattn.torch.installed():
        inner, calls = F.scaled_dot_product_attention, []
        def theirs(*args, **options):
            calls.append(args)
            return inner(*args, **options)
        F.scaled_dot_product_attention = theirs
    try:
        assert F.scaled_dot_product_attention is theirs and not routed(plain) and len(calls) == 1
        if again:
            with libattn.torch.installed():
                assert routed(plain) and len(calls) == 1
                out = left("dtype torch.float64", F.scaled_dot_product_attention, *doubles)
                assert torch.equal(out, original(*doubles)) and len(calls) == 2
            assert F.scaled_dot_product_attention is theirs
        assert not routed(plain)
        assert_exact(F.scaled_dot_product_attention(*plain, bias.causal_upper_left(5, 7)), *plain, causal=True)
    finally:
        F.scaled_dot_product_attention = original


def test_another_patch_while_ours_holds(plain):
    """While install() holds, ours works from under another's; both are reached once."""
    libattn.torch.install()
    inner = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda *args, **options: inner(*args, **options) + 1
    try:
        assert torch.equal(taken(F.scaled_dot_product_attention, *plain), sdpa(*plain) + 1)
        libattn.torch.install()
        assert torch.equal(taken(F.scaled_dot_product_attention, *plain), sdpa(*plain))
    finally:
        libattn.torch.uninstall()
        F.scaled_dot_product_attention = original


def test_stats(plain):
    libattn.torch.reset_stats()
    assert libattn.torch.stats() == {"taken": 0, "left": {}}
    doubles = tuple(x.double() for x in plain)
    with libattn.torch.installed():
        for _ in range(3):
            F.scaled_dot_product_attention(*plain)
            sdpa(*doubles)
        F.scaled_dot_product_attention(*plain, dropout_p=0.1)
    found = libattn.torch.stats()
    assert found == {"taken": 3, "left": {"dtype torch.float64": 3, "dropout": 1}}
    found["left"].clear()
    assert libattn.torch.stats()["left"]
    libattn.torch.reset_stats()
    assert libattn.torch.stats() == {"taken": 0, "left": {}}


def test_calls_and_routing_in_threads():
    """Threads that call, route and unroute at once: every result is right, every call counted, and in the end nothing is routed."""
    inputs = [tuple(torch.randn(1, 4, n + 3, 32) for _ in "qkv") for n in range(6)]
    expected = [sdpa(*x) for x in inputs]
    libattn.torch.reset_stats()
    start, wrong = threading.Barrier(6), []
    def work(mine):
        start.wait()
        for i in range(100):
            given = (mine + i) % 6
            with libattn.torch.installed():
                if not torch.equal(F.scaled_dot_product_attention(*inputs[given]), expected[given]):
                    wrong.append(given)
                if i % 10 == 0:
                    F.scaled_dot_product_attention(*inputs[given], dropout_p=0.1)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and libattn.torch.stats() == {"taken": 600, "left": {"dropout": 60}}


@pytest.mark.parametrize("mask", [None, "bool", "float", "padding", "causal"])
def test_multihead_attention(mask):
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).train()  # off its fast path, which is C++
    x, y = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    options = {"bool": {"attn_mask": torch.rand(5, 7) < 0.3}, "float": {"attn_mask": torch.randn(8, 5, 7)}, None: {},
               "padding": {"key_padding_mask": torch.arange(7).expand(2, 7) >= torch.tensor([[7], [4]])},
               "causal": {"attn_mask": torch.ones(5, 7, dtype=torch.bool).triu(1), "is_causal": True}}[mask]
    with torch.no_grad():
        expected = layer(x, y, y, need_weights=False, **options)[0]
        with libattn.torch.installed():
            out = taken(layer, x, y, y, need_weights=False, **options)[0]
    torch.testing.assert_close(out, expected)


def test_encoder_layer():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x, mask = torch.randn(2, 6, 32), torch.nn.Transformer.generate_square_subsequent_mask(6)
    with torch.no_grad():
        expected = layer.train()(x, mask, is_causal=True)
        with libattn.torch.installed():
            torch.testing.assert_close(taken(layer, x, mask, is_causal=True), expected)
            torch.testing.assert_close(layer.eval()(x, mask, is_causal=True), expected)
    grads = []
    for routing in (libattn.torch.installed, torch.enable_grad):
        layer.zero_grad()
        with routing():
            layer.train()(x).sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    assert all(map(torch.equal, *grads))
