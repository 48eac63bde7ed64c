"""python/libattn/_native.py says what include/attn/attn.h says: every struct's size, every field's place, every constant and status."""
import ctypes
import os
import re
import shutil
import subprocess

import pytest

import native


def program():
    lines = ["#include <attn/attn.h>", "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for struct, name in native.C_NAMES.items():
        lines.append(f'    printf("{name} %zu\\n", sizeof({name}));')
        for field in struct._fields_:
            lines.append(f'    printf("{name}.{field[0]} %zu %zu\\n", offsetof({name}, {field[0]}), sizeof((({name} *)0)->{field[0]}));')
    for name in native.C_CONSTANTS:
        lines.append(f'    printf("{name} %lld\\n", (long long){name});')
    return "\n".join(lines + ["    return 0;", "}"]) + "\n"


def mirrored():
    lines = []
    for struct, name in native.C_NAMES.items():
        lines.append(f"{name} {ctypes.sizeof(struct)}")
        for field in struct._fields_:
            place = getattr(struct, field[0])
            lines.append(f"{name}.{field[0]} {place.offset} {place.size}")
    return lines + [f"{name} {value}" for name, value in native.C_CONSTANTS.items()]


def test_structs_and_constants(tmp_path):
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to ask")
    source = tmp_path / "sizes.c"
    source.write_text(program())
    subprocess.run([*compiler.split(), f"-I{native.HEADER.parents[1]}", str(source), "-o", str(tmp_path / "sizes")], check=True)
    said = subprocess.run([str(tmp_path / "sizes")], capture_output=True, text=True, check=True).stdout.split("\n")
    assert [line for line in said if line] == mirrored()


def test_no_field_is_missing():
    """A struct that grew would keep its size where a field fits into padding; the names tell."""
    text = re.sub(r"/\*.*?\*/", "", native.HEADER.read_text(), flags=re.S)
    for struct, name in native.C_NAMES.items():
        body = re.search(r"typedef struct " + name + r" \{(.*?)\} " + name + ";", text, flags=re.S).group(1)
        body = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body)  # a pointer to a function: its name is the field's
        declared = [re.search(r"(\w+)(\[\d+\])?$", part.strip()).group(1)
                    for line in body.split(";") if line.strip() for part in line.split(",")]
        assert declared == [field[0] for field in struct._fields_], name


def test_status_texts():
    """Every status of the header has its own text in the library."""
    if not native.path().exists():
        pytest.fail(f"{native.path()} is not there")
    library = native.Library(native.path())
    listed = re.findall(r'X\((\w+), (\d+), "([^"]*)"\)', native.HEADER.read_text())
    assert len(listed) > 50 and [int(number) for _, number, _ in listed] == list(range(len(listed)))
    assert [library.text(int(number)) for _, number, _ in listed] == [text for _, _, text in listed]
