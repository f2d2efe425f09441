"""Puts the data of a report into its page."""

import base64
import gzip
import hashlib
import html
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec

UPLOT_VERSION: Final = "1.6.32"
"""The version of uPlot (https://github.com/leeoniya/uPlot, MIT) in ``assets/``, from the npm package ``uplot``."""

UPLOT_SHA256: Final = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""Digests of its files, as they are in that package."""

SCRIPTS: Final = (
    "uPlot.iife.min.js",
    "base.js",
    "plots.js",
    "timeline.js",
    "rows.js",
    "sections.js",
    "incidents.js",
    "main.js",
)
STYLES: Final = ("uPlot.min.css", "report.css")

_LEVEL: Final = 6
"""Compression of the events."""


def page(report: Mapping[str, Any], events: Mapping[str, Any]) -> bytes:
    """The page, in UTF-8.

    Args:
        report: from ``ReportReader.report``.
        events: from ``ReportReader.events``.
    """
    script = "\n".join(_asset(name) for name in SCRIPTS)
    style = "\n".join(_asset(name) for name in STYLES)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": html.escape(policy),
        "LICENSE": html.escape(_asset("uPlot.LICENSE").strip()).replace("--", "- -"),
        "STYLE": style,
        "TITLE": html.escape(f"{report['job'] or 'job'}: {report['headline']}"),
        "PLAIN": _plain(report),
        "REPORT": _json_block(report),
        "EVENTS": base64.b64encode(gzip.compress(msgspec.json.encode(events), _LEVEL, mtime=0)).decode(),
        "SCRIPT": script,
    }
    pieces = _asset("page.html").split("%%")  # text, name, text, name, ..., text
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces)).encode()


def _asset(name: str) -> str:
    return files("ftcore.report").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json_block(value: Any) -> str:
    """JSON for a script element: without the characters that could end it or begin a comment."""
    text = msgspec.json.encode(value).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _plain(report: Mapping[str, Any]) -> str:
    """The first screen, for readers without JavaScript."""
    rows = [f"<h1>{html.escape(str(report['job']))}: {html.escape(str(report['headline']))}</h1>"]
    for answer in report["answers"]:
        more = " ".join(map(str, answer["more"]))
        rows.append(
            f"<h2>{html.escape(answer['question'])}</h2><p>{html.escape(answer['text'])} {html.escape(more)}</p>"
        )
    return "".join(rows)
