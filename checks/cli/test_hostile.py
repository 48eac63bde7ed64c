"""Corrupt, truncated and hostile files: a message that names the file, exit code 2, no output; under sanitizers too."""
import json
import struct

import numpy as np
import pytest
from files import npy_bytes, safetensors_bytes, safetensors_file, safetensors_header, write

SHAPE = (1, 1, 3, 4)
ARRAY = np.arange(12, dtype=np.float32).reshape(SHAPE)


@pytest.fixture
def good(tmp_path):
    for name in "qkv":
        write(tmp_path / (name + ".npy"), ARRAY)
    return tmp_path


def run_with(path):
    return ["run", "-q", path, "-k", "k.npy", "-v", "v.npy", "-o", "out.npy", "--threads", "1"]


def refused(fails, folder, path, data):
    (folder / path).write_bytes(data)
    return fails(*run_with(path), words=["-q " + path])


# ---- .npy ----
NPY = npy_bytes(ARRAY)


@pytest.mark.parametrize("part", range(4))
def test_npy_truncated_at_every_byte(fails, good, part):
    for length in range(part, len(NPY), 4):
        refused(fails, good, "bad.npy", NPY[:length])


def header(text):
    return npy_bytes(ARRAY, header=text)


NPY_HEADERS = [
    "",
    "{",
    "{}",
    "[]",
    "'descr'",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 4)",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 4), } extra",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 4)}}",
    "{'descr': '<f4' 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, }",
    "{'descr': '<f4', 'shape': (1, 1, 3, 4), }",
    "{'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 4), 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 4), 'more': 1, }",
    "{'descr': '>f4', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '=f4', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': 'f4', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f44', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<c8', 'fortran_order': False, 'shape': (1, 1, 3, 2), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '|V4', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4" + "4" * 100 + "', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4\x01', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4\\n', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': <f4, 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': false, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': 0, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': 12, }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': [1, 1, 3, 4], }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 4, }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, , 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, -3, -4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3.0, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 0x3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 03, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (12), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 5), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 3), }",
    "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 99999999999999999999999999), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 1, 1, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4611686018427387904, 4), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (2305843009213693952, 1, 1, 1), }",
]


@pytest.mark.parametrize("text", NPY_HEADERS)
def test_npy_headers(fails, good, text):
    refused(fails, good, "bad.npy", header(text))


@pytest.mark.parametrize("text", ["{'shape': (1, 1, 3, 4), 'fortran_order': False, 'descr': '<f4'}", '{"descr":"<f4","fortran_order":False,"shape":(1,1,3,4)}',
                                  "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 3, 4,), }"])
def test_npy_headers_that_are_fine(attn, good, text):
    (good / "fine.npy").write_bytes(header(text))
    attn(*run_with("fine.npy"))


def test_npy_bytes_around(fails, good):
    refused(fails, good, "bad.npy", NPY + b"\0")
    refused(fails, good, "bad.npy", b"\0" + NPY)
    refused(fails, good, "bad.npy", NPY + NPY)
    for version in (0, 4, 255):
        refused(fails, good, "bad.npy", NPY[:6] + bytes([version]) + NPY[7:])
    refused(fails, good, "bad.npy", NPY[:7] + b"\1" + NPY[8:])
    for length in (0, 1, 53, 54, 0xFFFF):
        refused(fails, good, "bad.npy", NPY[:8] + struct.pack("<H", length) + NPY[10:])
    for length in (0, 65537, 0x7FFFFFFF, 0xFFFFFFFF):
        refused(fails, good, "bad.npy", b"\x93NUMPY\2\0" + struct.pack("<I", length) + NPY[10:])


def flips(data, count):
    """`count` bytes in turn replaced by others that parsers trip over."""
    for at in range(count):
        for byte in (0, 0xFF, ord("9"), ord("'"), ord("{")):
            if data[at] != byte:
                yield at, data[:at] + bytes([byte]) + data[at + 1 :]


def survives(attn, folder, name, data):
    """Refused, or taken as a file that still makes sense; never anything else."""
    out = folder / "out.npy"
    (folder / name).write_bytes(data)
    try:
        attn(*run_with(name))
        assert out.exists()
        out.unlink()
    except AssertionError as failed:
        if "exit 2" not in str(failed):
            raise
        assert not out.exists()


@pytest.mark.parametrize("part", range(5))
def test_npy_flipped_bytes(attn, good, part):
    for n, (_, data) in enumerate(flips(NPY, 75)):
        if n % 5 == part:
            survives(attn, good, "flip.npy", data)


# ---- .safetensors ----
ENTRY = {"dtype": "F32", "shape": list(SHAPE), "data_offsets": [0, 48]}
DATA = ARRAY.tobytes()
SAFE = safetensors_bytes({"q": ARRAY})


def entry(**changes):
    changed = {**ENTRY, **changes}
    return {"q": {key: value for key, value in changed.items() if value is not ...}}


@pytest.mark.parametrize("part", range(4))
def test_safetensors_truncated_at_every_byte(fails, good, part):
    for length in range(part, len(SAFE), 4):
        refused(fails, good, "bad.safetensors", SAFE[:length])


SAFE_HEADERS = {
    "list": [],
    "number": 1,
    "string": "q",
    "null": None,
    "entry is a number": {"q": 1},
    "entry is a list": {"q": [1]},
    "no dtype": entry(dtype=...),
    "no shape": entry(shape=...),
    "no offsets": entry(data_offsets=...),
    "another key": entry(more=1),
    "dtype number": entry(dtype=4),
    "dtype unknown": entry(dtype="F33"),
    "dtype lower": entry(dtype="f32"),
    "dtype empty": entry(dtype=""),
    "dtype too small": entry(dtype="F16"),
    "dtype of no use": entry(dtype="U32"),
    "shape number": entry(shape=12),
    "shape string": entry(shape="1,1,3,4"),
    "shape real": entry(shape=[1, 1, 3.0, 4]),
    "shape text": entry(shape=[1, 1, "3", 4]),
    "shape null": entry(shape=[1, 1, None, 4]),
    "shape negative": entry(shape=[1, 1, -3, -4]),
    "shape other": entry(shape=[1, 1, 3, 5]),
    "shape overflow": entry(shape=[1 << 32, 1 << 32, 1 << 32, 4]),
    "shape overflow to size": entry(shape=[1, 1, (1 << 62) + 3, 4]),
    "shape overflow with zero": entry(shape=[0, 1 << 62, 1 << 62, 4], data_offsets=[0, 0]),
    "shape huge": entry(shape=[1, 1, 3, 1 << 63]),
    "shape of nine": entry(shape=[1, 1, 1, 1, 1, 1, 1, 3, 4]),
    "offsets one": entry(data_offsets=[0]),
    "offsets three": entry(data_offsets=[0, 48, 48]),
    "offsets text": entry(data_offsets=["0", "48"]),
    "offsets real": entry(data_offsets=[0.0, 48.0]),
    "offsets object": entry(data_offsets={"begin": 0, "end": 48}),
    "offsets reversed": entry(data_offsets=[48, 0]),
    "offsets negative": entry(data_offsets=[-48, 0]),
    "offsets short": entry(data_offsets=[0, 44]),
    "offsets past the end": entry(data_offsets=[4, 52]),
    "offsets far": entry(data_offsets=[(1 << 62), (1 << 62) + 48]),
    "offsets wrap": entry(data_offsets=[(1 << 63) - 8, (1 << 63) - 1]),
    "offsets too big": entry(data_offsets=[0, 1 << 64]),
    "metadata list": {"__metadata__": [], **entry()},
    "metadata of numbers": {"__metadata__": {"scale": 1}, **entry()},
    "metadata nested": {"__metadata__": {"a": {}}, **entry()},
    "only metadata": {"__metadata__": {}},
    "nothing": {},
    "overlap": {**entry(), "r": ENTRY},
    "overlap in part": {"q": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}, "r": {"dtype": "F32", "shape": [8], "data_offsets": [16, 48]}},
    "gap": {"q": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "r": {"dtype": "F32", "shape": [4], "data_offsets": [32, 48]}},
    "begins late": entry(shape=[1, 1, 2, 4], data_offsets=[16, 48]),
    "bytes behind": entry(shape=[1, 1, 2, 4], data_offsets=[0, 32]),
    "another tensor is wrong": {**entry(), "r": {"dtype": "F32", "shape": [1], "data_offsets": [48, 52]}},
}


@pytest.mark.parametrize("name", SAFE_HEADERS)
def test_safetensors_headers(fails, good, name):
    refused(fails, good, "bad.safetensors", safetensors_file(SAFE_HEADERS[name], DATA))


TEXT = json.dumps(entry()).encode()
TEXTS = {
    "duplicate tensor": b'{"q":%s,"q":%s}' % ((json.dumps(ENTRY).encode(),) * 2),
    "duplicate key": TEXT.replace(b'"shape"', b'"dtype": "F32", "shape"'),
    "no end": TEXT[:-1],
    "two ends": TEXT + b"}",
    "comma": TEXT.replace(b"}}", b"},}"),
    "single quotes": TEXT.replace(b'"', b"'"),
    "comment": TEXT + b"//",
    "nan": TEXT.replace(b"48", b"NaN"),
    "exponent": TEXT.replace(b"48", b"4.8e1"),
    "nul": TEXT.replace(b'"q"', b'"q\\u0000"'),
    "raw nul": TEXT.replace(b'"q"', b'"q\0"'),
    "bad utf-8": TEXT.replace(b'"q"', b'"\xff\xfe"'),
    "leading space": b"  " + TEXT,
    "byte order mark": b"\xef\xbb\xbf" + TEXT,
    "deep": b'{"q":' + b"[" * 100000 + b"]" * 100000 + b"}",
    "many digits": TEXT.replace(b"48", b"4" * 10000),
    "escape codes": TEXT.replace(b"F32", b"\\u001b[31m"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_safetensors_json(fails, good, name):
    result = refused(fails, good, "bad.safetensors", safetensors_file(TEXTS[name], DATA))
    assert "\x1b" not in result.err and len(result.err) < 1000


def test_safetensors_control_characters_in_names_are_not_printed(fails, good):
    bad = {"q\x1b[2J" + "x" * 5000: {**ENTRY, "dtype": "F99"}}
    result = refused(fails, good, "bad.safetensors", safetensors_file(bad, DATA))
    assert "\x1b" not in result.err and len(result.err) < 1000


@pytest.mark.parametrize("length", [0, 1, 2, len(SAFE) - 8, len(SAFE) - 7, 1 << 24, 1 << 31, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1])
def test_safetensors_header_lengths(fails, good, length):
    refused(fails, good, "bad.safetensors", struct.pack("<Q", length) + SAFE[8:])


def test_safetensors_header_above_the_cap(fails, good):
    refused(fails, good, "bad.safetensors", safetensors_file(TEXT + b" " * (1 << 24), DATA))


def test_safetensors_bytes_behind(fails, good):
    refused(fails, good, "bad.safetensors", SAFE + b"\0")
    refused(fails, good, "bad.safetensors", SAFE + SAFE)


@pytest.mark.parametrize("part", range(5))
def test_safetensors_flipped_bytes(attn, good, part):
    for n, (_, data) in enumerate(flips(SAFE, 80)):
        if n % 5 == part:
            survives(attn, good, "flip.safetensors", data)


def test_safetensors_that_are_fine(attn, good):
    empty = {"dtype": "F32", "shape": [0, 7], "data_offsets": [48, 48]}
    other = {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [48, 51]}
    for header_ in (entry(), {"__metadata__": {"format": "pt"}, **entry()}, {**entry(), "none": empty}):
        (good / "fine.safetensors").write_bytes(safetensors_file(header_, DATA))
        attn(*run_with("fine.safetensors"))
    (good / "fine.safetensors").write_bytes(safetensors_file({"r": other, **entry()}, DATA + b"abc"))
    attn(*run_with("fine.safetensors"))


def test_safetensors_data_at_an_odd_address(attn, good):
    header_ = safetensors_header({"a": np.ones(3, np.uint8), "q": ARRAY})
    text = json.dumps(header_).encode()
    text += b" " * (1 - len(text) % 2)  # an odd length: the data lies at no element's alignment
    (good / "odd.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\1\1\1" + DATA)
    attn(*run_with("q.npy"))
    want = (good / "out.npy").read_bytes()
    attn(*run_with("odd.safetensors"))
    assert (good / "out.npy").read_bytes() == want
