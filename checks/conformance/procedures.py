"""The rules that need a course of action: merging parts, forking, threads, memory, the floating-point environment."""
import ctypes
import os
import platform
import threading
import time

import numpy as np

import call
import isolate
import native
import regions


def _close(*arguments):
    import rules
    return rules.close(*arguments)


def ok_empty(run, rule):
    wrong = run.refused() + run.result.violations
    return wrong + [f"{name} has elements" for name in ("out", "lse") if getattr(run.result, name).size]


def merge_parts(run, rule):
    """Each part of the keys by itself, in float32, merged: the whole. A sink goes with the first part."""
    problem, states, first = run.problem, [], 0
    for number, length in enumerate(rule["parts"]):
        part = problem.keys(first, first + length).replace(dtype_out="f32", sinks=problem.sinks if number == 0 else None)
        result = call.forward(run.target, part, {}, run.config)
        if result.status != native.OK:
            return [f"part {number}: {run.target.library.text(result.status)}"]
        states.append((result.out, result.lse))
        first += length
    if first != problem.k.shape[2]:
        return [f"the parts make {first} keys of {problem.k.shape[2]}"]
    whole = call.merge(run.target.context(run.config), states, problem, problem.dtype)
    if whole.status != native.OK:
        return [f"merge: {run.target.library.text(whole.status)}"]
    # As a whole and against the reference, which is tighter than the two together; lse is one float32 of either.
    part, live = run.expected.of, run.live()
    return (_close(part(whole.out), run.out.astype(np.float64), live, rule["atol"], rule["rtol"], "merged out") +
            _close(part(whole.out), run.expected.out, live, rule["atol"], rule["rtol"], "merged out against the reference") +
            _close(part(whole.lse), run.expected.lse, live, 1e-4, 2e-5, "merged lse") + whole.violations)


def merge_values(run, rule):
    """Two constant states and the constant that they make, in both orders. A state is (out, lse)."""
    like, wrong = run.problem, []
    B, Hq, _, Lq, _, _, Dv = like.sizes
    state = lambda pair: (np.full((B, Hq, Lq, Dv), float(pair[0]), np.float32), np.full((B, Hq, Lq), float(pair[1]), np.float32))
    want = state(rule["want"])
    for order in (("a", "b"), ("b", "a")):
        got = call.merge(run.target.context(run.config), [state(rule[name]) for name in order], like, "f32")
        if got.status != native.OK:
            return [f"merge: {run.target.library.text(got.status)}"]
        wrong += got.violations
        everywhere = np.ones((B, Hq, Lq), bool)
        tolerance = rule.get("atol", 0.0), rule.get("rtol", 2e-7 if _blends(rule) else 0.0)
        wrong += _close(got.out, want[0].astype(np.float64), everywhere, *tolerance, f"{order}: out")
        wrong += _close(got.lse, want[1].astype(np.float64), everywhere, *tolerance, f"{order}: lse")
    return wrong


def _blends(rule):
    """Neither state is the identity: the result is rounded."""
    return all(np.isfinite(float(rule[name][1])) for name in ("a", "b"))


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * regions.PAGE


def _threads():
    return len(os.listdir("/proc/self/task"))


def _settled_threads(want):
    """The thread count; one that was joined may still be listed for a moment."""
    for _ in range(200):
        if _threads() <= want:
            break
        time.sleep(0.01)
    return _threads()


def _cycles(run, count):
    """count times: a context with 1 to 5 threads, one call, close. The first result's bits must come out each time. Mostly few threads:
    a pool of more than there are CPUs takes long to end."""
    first = None
    for n in range(count):
        with run.target.open(call.Config(threads=5 if n % 50 == 9 else 3 if n % 25 == 8 else 1 + n % 2)) as context:
            result = call.Prepared(context, call.uniform(run.problem)).call()
        if result.status != native.OK:
            return [f"cycle {n}: {run.target.library.text(result.status)}"]
        first = first or result
        differ = first.bits_differ(result)
        if differ:
            return [f"cycle {n}: {differ}"]
    return []


def rss_growth_max(run, rule):
    wrong = _cycles(run, 10)
    before = _resident()
    wrong += _cycles(run, 30 if run.light else 1000)
    grown = _resident() - before
    return wrong + ([f"resident memory grew by {grown} bytes"] if grown > rule["bytes"] else [])


def thread_count_restored(run, rule):
    before = _threads()
    wrong = _cycles(run, 10)
    after = _settled_threads(before)
    return wrong + ([f"{after} threads, {before} before"] if after != before else [])


def _peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def scratch_max(run, rule):
    """What the workspace query says, and the growth of the peak resident size over a call that allocates for itself."""
    context = run.target.open(run.config)
    ready = call.Prepared(context, call.uniform(run.problem), run.layout)
    asked = context.workspace(ready.c_problem)
    wrong = [f"the workspace query asks for {asked} bytes"] if asked > rule["bytes"] else []
    args = ready.begin()  # also touches the outputs
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = _resident()
    except OSError:
        before = _peak()  # the peak so far is all that is known: growth beyond it is still caught
    status = context.forward(ready.c_problem, args)
    grown = _peak() - before
    run.keep(ready.collect(status))
    context.close()
    return run.refused() + wrong + ([f"peak memory grew by {grown} bytes"] if grown > rule["bytes"] else [])


def completes_within(run, rule):
    """A limit against hanging. A fork case calls in parent and child after both had threads."""
    limit, before = float(rule["seconds"]), run.result

    def in_child():
        differ = before.bits_differ(run.again())
        return [f"in the child: {differ}"] if differ else []

    wrong = []
    if run.target.forks and (run.case["kind"] == "fork" or "fork" in run.case.get("procedure", "")):
        wrong += isolate.run(in_child, limit)
    start = time.monotonic()
    differ = before.bits_differ(run.again())
    spent = time.monotonic() - start
    return wrong + ([f"afterwards: {differ}"] if differ else []) + ([f"took {spent:.1f} s"] if spent > limit else [])


def race_free(run, rule):
    """One context, three threads, each with its own buffers: the bits of a call by itself."""
    context, whole = run.target.context(run.config), call.uniform(run.problem)
    prepared = [call.Prepared(context, whole, run.layout) for _ in range(3)]
    wrong = []

    def work(ready):
        for _ in range(5 if run.light else 100):
            differ = run.result.bits_differ(ready.call())
            if differ:
                wrong.append(differ)
                return

    threads = [threading.Thread(target=work, args=(ready,)) for ready in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return run.refused() + wrong


class _Environment:
    """The caller's rounding mode, and on x86-64 the whole control word: flush-to-zero, denormals-are-zero, exception masks."""

    def __init__(self):
        self.libm = ctypes.CDLL("libm.so.6")
        self.words = (ctypes.c_uint32 * 64)()
        self.x86 = platform.machine() == "x86_64"

    def control(self):
        if not self.x86:
            return self.libm.fegetround()
        self.libm.fegetenv(self.words)
        return (self.words[0] & 0xFFFF, self.words[7] & ~0x3F)  # x87 control word; MXCSR without its sticky flags

    def set(self, bits):
        """bits of MXCSR to set besides; the rounding mode alone elsewhere."""
        if self.x86:
            self.libm.fegetenv(self.words)
            self.words[7] = (self.words[7] & ~0xE040) | bits
            self.libm.fesetenv(self.words)


def fp_env_unchanged(run, rule):
    """As it is, and with a control word that nobody would guess: flush to zero, denormals are zero, round down. The bits are the same."""
    whole = call.uniform(run.problem)
    ready = call.Prepared(run.target.context(run.config), whole, run.layout, run.config)
    args, environment, wrong = ready.begin(), _Environment(), []
    for bits in (0, 0x8000 | 0x0040 | 0x2000):
        environment.set(bits)
        before = environment.control()
        status = run.target.context(run.config).forward(ready.c_problem, args)
        after = environment.control()
        environment.set(0)
        if status != native.OK:
            wrong.append(run.target.library.text(status))
        differ = run.result.bits_differ(ready.collect(status))
        if differ:
            wrong.append(f"control word bits {bits:#x}: {differ}")
        if before != after:
            wrong.append(f"control words {before} became {after}")
    return wrong


def query_equals_call(run, rule):
    """The size that the query names is enough (the bits are those of any other call), and one byte less is refused before a write."""
    context, whole = run.target.context(run.config), call.uniform(run.problem)
    config = call.Config(run.config.passes, run.config.chunk, run.config.threads, run.config.at_end, workspace=True)
    ready = call.Prepared(context, whole, run.layout, config)
    exact = ready.call()
    differ = run.result.bits_differ(exact)
    wrong = run.refused() + ([f"with a workspace of the size asked for: {differ}"] if differ else [])
    if ready.workspace.size:
        args = ready.begin()
        args.workspace_size -= 1
        if context.forward(ready.c_problem, args) == native.OK:
            wrong.append("success with a workspace one byte smaller than asked for")
    return wrong
