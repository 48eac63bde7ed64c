"""attn bench's page, in a real browser and as XML; the peers' file; the arrays handed to peers."""
import json
import re
import struct
import subprocess
import xml.etree.ElementTree as ElementTree
import zlib

import numpy as np
import pytest

import browser
from files import read, to_f64

SVG, HTML = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xhtml}"
HOSTILE = '</title><script>alert("1")</script><img src=x onerror=alert(2)> & \'"'
CASES = {"origin.small": "1,16/1,1,1024,128", "P1.small": "1,4/1,512,512,128,causal", "1,4/2,20,120,32": "1,4/2,20,120,32"}
ENTRY = {"case": "origin.small", "type": "f32", "peer": "Other", "version": "1.0", "seconds_median": 0.5, "error": 1e-6, "note": ""}


def document(*entries, **more):
    return {"machine": HOSTILE, "threads": 1, "entries": [{**ENTRY, **e} for e in entries], **more}


@pytest.fixture(scope="module")
def page(binary, tmp_path_factory):
    """A report with peers, some of them hostile: the folder of report.html, rows.json and what was printed."""
    folder = tmp_path_factory.mktemp("page")
    peers = document({}, {"peer": HOSTILE, "note": HOSTILE, "version": HOSTILE, "ratio": 7.25}, {"type": "bf16", "peer": "\u00fcmlaut " * 9},
                     {"case": "P1.small", "seconds_median": 3e-6}, {"case": "not here"})
    (folder / "peers.json").write_text(json.dumps(peers))
    args = [arg for name in CASES for arg in (("--shape" if "," in name else "--case"), name)]
    done = subprocess.run([binary, "bench", *args, "--type", "f32,bf16", "--seconds", "0", "--threads", "1", "--compare", "peers.json", "--html",
                           "report.html", "--json", "rows.json"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done
    (folder / "printed").write_text(done.stdout)
    return folder


# ---- the page as a document ----
def test_is_well_formed_and_whole(page):
    text = (page / "report.html").read_text()
    root = ElementTree.fromstring(text.replace("<!DOCTYPE html>\n", "", 1))
    assert text.startswith("<!DOCTYPE html>\n") and root.tag == HTML + "html" and root.get("lang") == "en"
    assert {e.tag.removeprefix(HTML) for e in root.iter()}.isdisjoint({"script", "img", "link", "iframe", "object", "embed", "base", "form"})
    names = [name for e in root.iter() for name in e.keys()]
    assert not [n for n in names if n.startswith("on") or n.endswith(("href", "src"))]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/1999/xhtml)", text)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1"/>' in text and "prefers-color-scheme:dark" in text
    for image in (e for e in root.iter(HTML + "svg") if e.get("role") == "img"):  # each has a name that a screen reader can say
        ids = image.get("aria-labelledby").split()
        assert ids and all(e.text for e in image.iter() if e.get("id") in ids) and {e.get("id") for e in image.iter()} >= set(ids)
    everything = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(everything) == len(set(everything))
    assert HOSTILE in ["".join(cell.itertext()) for cell in root.iter(HTML + "td")]


def test_tables_hold_every_figure(page):
    root = ElementTree.fromstring((page / "report.html").read_text().removeprefix("<!DOCTYPE html>\n"))
    ours, peers = root.iter(HTML + "table")
    rows = [json.loads(line) for line in (page / "rows.json").read_text().splitlines()]
    cells = [["".join(c.itertext()) for c in row] for row in ours.find(HTML + "tbody")]
    assert len(cells) == len(rows) == 6
    for shown, row in zip(cells, rows):
        assert row["case"] in shown[0] and row["shape"] in shown[0] and shown[1] == row["type"] and shown[-1] == row["plan"]
        assert shown[6] == "%.3f" % row["share"] and shown[8] == "%.1e" % row["error_relative"]
        assert row["shape"] == CASES[row["case"]] and row["ceiling_spread"] >= 0 and row["seconds_floor"] == pytest.approx(row["share"] * row["seconds_median"])
    assert len(list(peers.find(HTML + "tbody"))) == sum(len(row["peers"]) for row in rows) == 4
    assert "NaN" not in "".join(root.itertext())


def test_ratios(page):
    rows = {(r["case"], r["type"]): r for r in map(json.loads, (page / "rows.json").read_text().splitlines())}
    other, hostile = rows["origin.small", "f32"]["peers"]
    assert set(other) == {"peer", "version", "seconds_median", "ratio", "paired", "error", "note"}
    assert other["ratio"] == pytest.approx(0.5 / rows["origin.small", "f32"]["seconds_median"]) and not other["paired"]
    assert hostile["ratio"] == 7.25 and hostile["paired"] and hostile["peer"] == HOSTILE
    assert rows["P1.small", "bf16"]["peers"] == []
    printed = (page / "printed").read_text()
    assert "ratio to the fastest peer, of 3 problems: median " in printed and "the peers were timed elsewhere" in printed and " 7.25 " in printed
    assert "sitting, in turn with attn; 1 of 1 are a quarter and more off" in printed


# ---- the page in a browser ----
@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if not browser.find():
        pytest.skip("no Chromium: Debian's chromium-headless-shell, or ATTN_BROWSER")
    opened = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def colours(png):
    """How many different colours a screenshot has: PNG, 8 bits, RGB or RGBA."""
    at, data, (width, height, bits, kind) = 8, b"", struct.unpack(">IIBB", png[16:26])
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        data += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + length
    each = {2: 3, 6: 4}[kind]
    assert bits == 8
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * each)
    lines, before = [], np.zeros(width * each, np.uint8)
    for row in rows:
        before = unfilter(row[0], row[1:], before, each)
        lines.append(before)
    return len(np.unique(np.array(lines).reshape(-1, each), axis=0)), (width, height)


def unfilter(how, row, above, each):
    if how == 0:
        return row
    if how == 2:
        return row + above
    if how == 1:
        return np.add.accumulate(row.reshape(-1, each), axis=0, dtype=np.uint8).ravel()
    out = np.zeros(len(row) + each, int)
    upper = np.concatenate([np.zeros(each, int), above.astype(int)])
    for i in range(len(row)):
        a, b, c = out[i], upper[i + each], upper[i]
        p = a + b - c
        nearest = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        out[i + each] = (int(row[i]) + ((a + b) // 2 if how == 3 else nearest)) & 255
    return out[each:].astype(np.uint8)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_in_a_browser(page, chromium, tmp_path, width, dark):
    errors, requests = chromium.open(page / "report.html", width, dark=dark)
    assert errors == [] and [r for r in requests if not r.startswith("file://")] == [] and len(requests) == 1
    assert chromium.value("innerWidth") == width and chromium.value("document.documentElement.scrollWidth") <= width
    outside = """[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 && !e.closest('thead'))
                 .map(e => e.outerHTML.slice(0, 120))"""
    assert chromium.value(outside) == []
    sizes = "[...document.querySelectorAll('main *')].filter(e => e.innerText || e.localName == 'text').map(e => parseFloat(getComputedStyle(e).fontSize))"
    assert min(chromium.value(sizes)) >= 12
    bars = """[...document.querySelectorAll('.bars svg')].map(s => ['.ceiling', '.ours', '.peer'].map(c => [...s.querySelectorAll(c)]
              .filter(r => r.getBoundingClientRect().height > 0).length))"""
    assert chromium.value(bars) == [[3, 1, 2], [2, 1, 1], [2, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]]
    assert chromium.value("document.querySelectorAll('#roofline .mark').length") == 6
    assert chromium.value("document.title").startswith("attn bench: ") and not chromium.value("document.querySelector('script, img')")
    found, size = colours(chromium.shot(tmp_path / "shot.png", whole=False))
    assert found > 50 and size[0] == width


@pytest.mark.parametrize("width", [360, 1280])
def test_labels_do_not_overlap(page, chromium, width):
    chromium.open(page / "report.html", width)
    boxes = chromium.value("""[...document.querySelectorAll('#roofline > text')].map(t => t.getBoundingClientRect()).map(r => [r.x, r.y, r.right, r.bottom])""")
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert min(a[2], b[2]) - max(a[0], b[0]) < 1 or min(a[3], b[3]) - max(a[1], b[1]) < 5, (a, b)



# ---- peers.json ----
def without(field):
    return {k: v for k, v in ENTRY.items() if k != field}


BAD = [
    ("[]", "one JSON object"),
    ("{", "is not JSON"),
    ("", "is not JSON"),
    ('{"machine": "", "machine": "", "threads": 1, "entries": []}', "repeats a key"),
    ('{"threads": 1, "entries": []}', "machine: is missing"),
    ('{"machine": 5, "threads": 1, "entries": []}', "machine: must be a string"),
    ('{"machine": "", "entries": []}', "threads: is missing"),
    ('{"machine": "", "threads": 1.5, "entries": []}', "threads: must be"),
    ('{"machine": "", "threads": 0, "entries": []}', "threads: must be"),
    ('{"machine": "", "threads": 1}', "entries: is missing"),
    ('{"machine": "", "threads": 1, "entries": {}}', "entries: must be an array"),
    ('{"machine": "", "threads": 1, "entries": [5]}', "entries[0]: must be an object"),
    ('{"machine": "", "threads": 1, "isa": "", "entries": []}', "isa: must not be empty"),
    ('{"machine": "", "threads": 1, "precision": "slow", "entries": []}', "precision: must be exact or fast"),
    ('{"machine": "", "threads": 1, "precision": 1, "entries": []}', "precision: must be exact or fast"),
    *((json.dumps({"machine": "", "threads": 1, "entries": [ENTRY, without(f)]}), f"entries[1].{f}: is missing") for f in ENTRY),
    *((json.dumps(document({f: v})), f"entries[0].{f}: must") for f, v in [
        ("case", ""), ("case", None), ("type", "f64"), ("peer", "x" * 201), ("peer", "\x1b[2J"), ("peer", "\x9b2J"), ("peer", "\u202e"), ("peer", "\ufffe"),
        ("peer", "a\0b"), ("version", 2), ("seconds_median", 0), ("seconds_median", -1), ("seconds_median", "fast"), ("error", -1), ("error", None),
        ("note", "\n"), ("ratio", 0), ("ratio", "2"), ("ratio", 1e300), ("seconds_median", 1e-300)]),
    (json.dumps(document({}, {})), "entries[1].peer: stands there twice"),
    (json.dumps(document({})).replace("0.5", "1e999"), "peers.json"),
    ("[" * 100000, "is not JSON"),
]


@pytest.mark.parametrize("text, words", BAD, ids=range(len(BAD)))
def test_malformed_peers(fails, tmp_path, text, words):
    (tmp_path / "peers.json").write_text(text)
    result = fails("bench", "--compare", "peers.json", "--html", "report.html", "--seconds", "0", words=["--compare peers.json: ", words])
    assert result.err.count("\n") == 1 and "\x1b" not in result.err


# ---- arrays for peers ----
@pytest.mark.parametrize("case, kind", [("P1.small", "f32"), ("origin.small", "bf16"), ("origin.small", "f16")])
def test_saved_arrays_are_those_of_the_case(attn, tmp_path, case, kind):
    assert attn("bench", "--case", case, "--type", kind, "--save", "case.safetensors").out == ""
    report = json.loads(attn("run", "case.safetensors", "-o", "out.npy", "--verify", "--json").out)
    explained = json.loads(attn("explain", "--case", case, "--type", kind, "--json").out)
    assert report["problem"] == explained["problem"] and report["verify"]["passed"]
    assert np.abs(to_f64(read(tmp_path / "out.npy"))).max() > 0.01
    again = (tmp_path / "case.safetensors").read_bytes()
    attn("bench", "--case", case, "--type", kind, "--save", "case.safetensors")
    assert (tmp_path / "case.safetensors").read_bytes() == again


def test_list(attn):
    assert attn("bench", "--list").out.split() == ["origin", "D2", "D3", "D4", "D5", "M1", "P1", "P2", "P3", "P4"]
