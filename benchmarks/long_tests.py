"""Runs the tests that take too long for CI, and records the date.

Tests marked ``long`` run only here; tests marked ``longer`` run here with the cases that CI leaves out.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from results import table, write

ROOT = Path(__file__).parents[1]
MARKED = "long or longer"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", metavar="EXPRESSION", default="", help="only some of them; does not change RESULTS.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftcore-long-") as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-m", MARKED, f"--junitxml={report}"]
        day = time.strftime("%Y-%m-%d", time.gmtime())
        done = subprocess.run(
            [*command, *(["-k", args.k] if args.k else [])],
            cwd=ROOT,
            env={**os.environ, "FTCORE_LONG_TESTS": "1"},
            check=False,
        )
        rows = [] if not report.exists() else _rows(ElementTree.parse(report).getroot())
    if not rows or args.k:
        return done.returncode
    failed = sum(row[2] == "failed" for row in rows)
    body = (
        f"{table(('test', 'seconds', 'outcome'), rows)}\n\n"
        f"{day}, commit {_commit()}: {len(rows)} tests, {failed} failed."
    )
    write("Long tests", "make long", body)
    return done.returncode


def _rows(report: ElementTree.Element) -> list[tuple[str, str, str]]:
    rows = []
    for case in report.iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        module = re.sub(r".*\.", "", case.get("classname", ""))
        rows.append((f"`{module}::{case.get('name')}`", f"{float(case.get('time', 0)):.0f}", outcome))
    return sorted(rows)


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
