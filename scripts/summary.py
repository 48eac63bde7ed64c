#!/usr/bin/env python3
"""summary.py REPORT FOLDER: names what was skipped in a ctest run and why, and ends with one line of counts. A test that has a report of its
own in FOLDER (NAME.xml, from pytest) counts as the cases in it. A program that passed may have skipped a part, and its output names it."""
import pathlib
import re
import sys
import xml.etree.ElementTree as xml


def cases(report, folder):
    """(name, outcome, reason of a skip) of every case."""
    for case in xml.parse(report).iter("testcase"):
        name = case.get("name", "")
        own = folder / f"{name}.xml" if folder else None
        if own and own.exists():
            inner = [(f"{name}: {part}", *rest) for part, *rest in cases(own, None)]
            yield from inner
            if case.get("status") == "fail" and all(outcome != "failed" for _, outcome, _ in inner):
                yield name, "failed", ""
        elif case.find("skipped") is not None:
            output = (case.findtext("system-out") or "").strip().splitlines()
            yield name, "skipped", output[-1] if output else case.find("skipped").get("message", "")
        else:
            failed = case.get("status") == "fail" or any(case.find(tag) is not None for tag in ("failure", "error"))
            yield name, "failed" if failed else "passed", ""
            for part in re.findall(r"^check_\w+: skip(?:ped)?: (.*)", case.findtext("system-out") or "", re.MULTILINE):
                yield name, "skipped", part


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name, outcome, reason in cases(sys.argv[1], pathlib.Path(sys.argv[2])):
        counts[outcome] += 1
        if outcome == "skipped":
            print(f"skipped: {name}: {reason}")
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


main()
