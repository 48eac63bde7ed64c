"""The C API as the Python package has it (python/libattn/_native.py), and which library is under test."""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "attn" / "attn.h"
sys.path.insert(0, str(ROOT / "python"))

from libattn._native import *  # noqa: E402, F401, F403


def path():
    """ATTN_LIB, or build/libattn.so."""
    return pathlib.Path(os.environ.get("ATTN_LIB", ROOT / "build" / "libattn.so"))
