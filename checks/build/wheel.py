#!/usr/bin/env python3
"""wheel.py SOURCE: builds the sdist and the wheel in a scratch folder and, from the sdist, the wheel again. Holds names, tags and file
lists to what they have to be, installs the wheel into a new environment and computes attention there, in another folder. Nothing is
downloaded: the Python that runs this brings the build's backend and NumPy. Leaves nothing behind, in the sources neither."""
import email
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile

LIBRARY = "libattn/libattn.so"
SDIST = {"CHANGELOG.md", "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "cmake", "include", "pyproject.toml", "python", "src"}
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
USE = """
import os, numpy as np, libattn
x = np.random.default_rng(1).standard_normal((3, 2, 4, 50, 32), np.float32)
out = libattn.attention(*x, causal="top-left")
scores = np.where(np.tri(50, dtype=bool), np.einsum("bhid,bhjd->bhij", *x[:2].astype(float)) * 32 ** -0.5, -np.inf)
weights = np.exp(scores - scores.max(-1, keepdims=True))
right = weights / weights.sum(-1, keepdims=True) @ x[2].astype(float)
assert out.shape == right.shape and np.abs(out - right).max() < 1e-5, np.abs(out - right).max()
info = libattn.info()
assert info["version"] == os.environ["VERSION"], info
assert info["threads"] == 1 or info["pool"] == "pthreads", info
print(info["library"])
"""


def fail(text):
    sys.exit(f"wheel.py: {text}")


def same(what, found, wanted):
    if set(found) != set(wanted):
        fail(f"{what}: missing {sorted(set(wanted) - set(found))}, too much {sorted(set(found) - set(wanted))}")


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, **options)
    if done.returncode:
        fail(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def tree(source):
    """Every file and folder but git's and those below build folders, which other checks write at the same time."""
    kept = []
    for folder, folders, files in os.walk(source):
        at = pathlib.Path(folder)
        kept += [str((at / name).relative_to(source)) for name in folders + files]
        if at == source:
            folders[:] = [name for name in folders if name not in (".git", "build") and not (at / name / "CMakeCache.txt").exists()]
    return kept


def files_of(folder, below):
    """Names below `below` of the files that git keeps of a folder."""
    return {str(path.relative_to(below)) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def check_sdist(path, source, version):
    with tarfile.open(path) as archive:
        names = [pathlib.PurePath(member.name) for member in archive if not member.isdir()]
    same("first folder of the sdist", {name.parts[0] for name in names}, {f"libattn-{version}"})
    same("sdist", {name.parts[1] for name in names}, SDIST)
    held = {"/".join(name.parts[1:]) for name in names}
    for folder in ("cmake", "include", "src", "python/libattn"):
        same(f"{folder} in the sdist", {name for name in held if name.startswith(f"{folder}/")}, files_of(source / folder, source))


def check_wheel(path, source, version):
    """The names of its files."""
    tag = f"py3-none-{re.sub('[-.]', '_', sysconfig.get_platform())}"
    if path.name != f"libattn-{version}-{tag}.whl":
        fail(f"the wheel's name is {path.name}, not that of {tag}")
    wanted = files_of(source / "python" / "libattn", source / "python")
    about = {f"libattn-{version}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE")}
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        same("wheel", names, wanted | about | {LIBRARY})
        wheel = email.message_from_bytes(archive.read(f"libattn-{version}.dist-info/WHEEL"))
        metadata = email.message_from_bytes(archive.read(f"libattn-{version}.dist-info/METADATA"))
    same("tags", wheel.get_all("Tag"), {tag})
    if wheel["Root-Is-Purelib"] != "false" or "libattn/py.typed" not in names:
        fail("the wheel says that it is pure Python, or lacks py.typed")
    same("extras", metadata.get_all("Provides-Extra"), {"torch", "transformers", "onnx"})
    same("what is always required", {need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need}, {"numpy>=1.24"})
    return names


def check_library(path):
    dynamic = run("readelf", "-d", path)
    needs = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    if needs - SYSTEM or re.search(r"\((RPATH|RUNPATH)\)", dynamic):
        fail(f"the library needs {sorted(needs)}, or has a search path\n{dynamic}")


def check_use(wheel, version, scratch):
    home = scratch / "environment"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "--no-cache-dir", wheel)
    packages = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())
    (packages / "numpy_of_the_checks.pth").write_text(sysconfig.get_path("purelib") + "\n")
    check_library(packages / LIBRARY)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_", "ATTN_", "LIBATTN_"))}
    used = run(python, "-c", USE, cwd=scratch, env=environment | {"VERSION": version}).splitlines()[-1]
    if pathlib.Path(used).resolve() != (packages / LIBRARY).resolve():
        fail(f"the installed package uses {used}")


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    version = re.search(r'ATTN_VERSION_TEXT "(.*?)"', (source / "src/version.h").read_text()).group(1)
    before = tree(source)
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        build = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
        run(*build, scratch / "one", "--sdist", source)
        sdist = scratch / "one" / f"libattn-{version}.tar.gz"
        check_sdist(sdist, source, version)
        run(*build, scratch / "one", "--wheel", source)
        run(sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch / "two", sdist)
        (wheel,), (again,) = (scratch / "one").glob("*.whl"), (scratch / "two").glob("*.whl")
        names = check_wheel(wheel, source, version)
        same("wheel from the sdist", check_wheel(again, source, version), names)
        check_use(wheel, version, scratch)
    same("the source tree afterwards", tree(source), before)
    print(f"{wheel.name}: {len(names)} files, used from another folder")


main()
