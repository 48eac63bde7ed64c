"""Every block of Python in the documentation runs; a block of text right after one is what it prints. The manual's table of arguments
is attention's signature."""
import contextlib
import inspect
import io
import pathlib
import re

import pytest

import libattn

ROOT = pathlib.Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.S | re.M)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]


def blocks():
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 2
            yield pytest.param(page, line, found[1], found[2], id=f"{page.relative_to(ROOT)}:{line}")


@pytest.mark.parametrize("page, line, code, printed", list(blocks()))
def test_block(page, line, code, printed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile("\n" * (line - 1) + code, page, "exec"), {"__name__": "__main__"})
    if printed is not None:
        assert output.getvalue() == printed


def test_none_is_missed():
    manual = (ROOT / "docs" / "python.md").read_text()
    assert manual.count("```python") == len(BLOCK.findall(manual)) >= 10


def test_arguments():
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^|]*)`)? *\|", (ROOT / "docs" / "python.md").read_text(), re.M)
    signature = inspect.signature(libattn.attention).parameters
    assert [(name, repr(p.default).replace("'", '"') if p.default is not p.empty else "") for name, p in signature.items()] == rows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    """Files and headings that a page points to are there."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    for path, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: no {path}"
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if heading else []
        anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
        assert not heading or heading in anchors, f"{page.name}: no #{heading} in {target.name}"
