"""Options of the conformance checks, the devices and ISAs to run them on, and what was left out, said at the end."""
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would spin beside the library's, and do not survive a fork

import call  # noqa: E402
import isolate  # noqa: E402
import native  # noqa: E402


def pytest_addoption(parser):
    group = parser.getgroup("conformance")
    group.addoption("--perf", action="store_true", help="run the rules that compare times, and nothing else")
    group.addoption("--large", action="store_true", help="run the cases that need tens of GB, where the memory is there")
    group.addoption("--no-fork", action="store_true", help="run the checks in this process, for a debugger")
    group.addoption("--target", action="append", default=[], help="only this one: reference, scalar, avx2, ..., cuda, or mirrored: the CPU "
                    "by the copies that cuda needs (may be repeated)")


def pytest_configure(config):
    config.addinivalue_line("markers", "perf: compares times; deselected unless --perf is given")
    for name in ("perf", "large"):
        if os.environ.get(f"ATTN_{name.upper()}") == "1":
            setattr(config.option, name, True)


def pytest_collection_modifyitems(config, items):
    wanted = config.getoption("--perf")
    dropped = [item for item in items if (item.get_closest_marker("perf") is not None) != wanted]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in set(dropped)]
    config.timed_rules_left_out = 0 if wanted else len(dropped)


def pytest_terminal_summary(terminalreporter, config):
    if getattr(config, "timed_rules_left_out", 0):
        terminalreporter.write_line(f"{config.timed_rules_left_out} comparisons of times were left out; --perf runs them")


_targets = None


def targets(config):
    """name -> Target, the fastest ISA last. Empty where there is no library: each test then fails and says so."""
    global _targets
    if _targets is None:
        _targets = {}
        if native.path().exists():
            library = native.Library(native.path())
            _targets["reference"] = call.Target(library, "reference", native.REFERENCE)
            with library.open(threads=1) as context:
                isas = context.describe().isas.decode().split()
            for isa in isas:
                _targets[isa] = call.Target(library, isa, native.CPU, isa)
        only = config.getoption("--target")
        if only:
            if native.path().exists():  # opened in the children alone: CUDA does not survive a fork
                _targets["mirrored"] = call.Target(library, "mirrored", native.CPU, mirrored=True)
                _targets["cuda"] = call.Target(library, "cuda", native.CUDA, mirrored=True)
            _targets = {name: target for name, target in _targets.items() if name in only}
    return _targets


def target_names(config):
    return list(targets(config)) or ["no library"]


@pytest.fixture
def target_of(request):
    """name -> Target, or the failure that says what to build."""
    def get(name):
        if name not in targets(request.config):
            pytest.fail(f"{native.path()} is not there: build it, or name another in ATTN_LIB")
        return targets(request.config)[name]
    return get


@pytest.fixture
def isolated(request):
    """Runs a check in a child of its own and fails with what it found."""
    def run(check, seconds=300):
        wrong = check() if request.config.getoption("--no-fork") else isolate.run(check, seconds)
        if wrong:
            pytest.fail("\n".join(wrong[:20]), pytrace=False)
    return run
