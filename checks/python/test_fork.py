"""Calls in the child of a fork, whatever the parent's other threads were doing."""
import os
import threading
import time

import numpy as np
import pytest

import torch

import libattn
import libattn.torch
from libattn import _attention, _torch_plan

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
              pytest.mark.filterwarnings("ignore:.*fork")]


def in_child(work, seconds=60):
    """Whether the child ends with work() true in time."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = work()
        finally:
            os._exit(0 if good else 1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


@pytest.fixture
def q():
    return np.random.default_rng(0).standard_normal((1, 8, 200, 64), np.float32)


def test_after_a_call(q):
    expected = libattn.attention(q, q, q)
    assert in_child(lambda: np.array_equal(libattn.attention(q, q, q), expected))
    assert np.array_equal(libattn.attention(q, q, q), expected)


def test_beside_calls(q):
    """Threads of the parent are in calls at the moment of the fork."""
    expected, stop = libattn.attention(q, q, q), threading.Event()
    def busy():
        while not stop.is_set():
            libattn.attention(q, q, q)
    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert all(in_child(lambda: np.array_equal(libattn.attention(q, q, q), expected)) for _ in range(5))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_while_another_thread_opens(q):
    """Where a context is being opened at the moment of the fork, the child must not wait for the thread that it does not have."""
    held, go_on = threading.Event(), threading.Event()
    def open_slowly():
        with _attention.opening:
            held.set()
            go_on.wait()
    thread = threading.Thread(target=open_slowly)
    thread.start()
    held.wait()
    try:
        assert in_child(lambda: libattn.attention(q, q, q, threads=3, device="reference").shape == q.shape, seconds=20)
    finally:
        go_on.set()
        thread.join()


def test_on_the_threads_of_pytorch(q):
    """In the parent libattn.torch works on OpenMP's threads, after PyTorch has. In the child OpenMP hangs, PyTorch's torch.equal too."""
    q = torch.from_numpy(q)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        (q @ q.mT).softmax(-1)
        expected = libattn.torch.scaled_dot_product_attention(q, q, q)
        assert _torch_plan.context(3, "exact").describe().pool == b"executor"
        assert in_child(lambda: np.array_equal(libattn.torch.scaled_dot_product_attention(q, q, q).numpy(), expected.numpy())
                        and _torch_plan.context(3, "exact").describe().pool != b"executor")
        assert torch.equal(libattn.torch.scaled_dot_product_attention(q, q, q), expected)
    finally:
        torch.set_num_threads(before)


def test_while_another_thread_counts(q):
    """The locks of libattn.torch, held by a thread that the child does not have."""
    q, held, go_on = torch.from_numpy(q), threading.Event(), threading.Event()
    def hold():
        with libattn.torch.counts.lock, libattn.torch.routing.lock:
            held.set()
            go_on.wait()
    def work():
        with libattn.torch.installed():
            return torch.nn.functional.scaled_dot_product_attention(q, q, q).shape == q.shape and libattn.torch.stats()["taken"] > 0
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_child(work, seconds=20)
    finally:
        go_on.set()
        thread.join()


def test_calls_by_the_thread_that_opens_and_counts(q):
    """As the handler of a signal, or a __del__, makes them."""
    def work():
        with _attention.opening, libattn.torch.counts.lock, libattn.torch.routing.lock, libattn.torch.installed():
            tensor = torch.from_numpy(q)
            done.append(torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor))
            done.append(libattn.attention(q, q, q, threads=4))
    done = []
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert len(done) == 2
