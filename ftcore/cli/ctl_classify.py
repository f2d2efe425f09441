"""``ftctl classify``: classifies the text of any log with the rules of a running job.

House rules: the text is streamed, so a log of any size can be read. Binary input is refused with its byte offset. Only
``text`` of a JSON line is classified; other keys, such as a label, are ignored and copied to the output.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ftcore.cli.ctl_output import paint, print_json, wants_colour
from ftcore.errors import UsageError
from ftcore.faults.extra import extra_rules
from ftcore.faults.rule import Rule
from ftcore.faults.taxonomy import FaultClass, facts_of, settings_for
from ftcore.faults.text import Diagnosis, TextReader, classify_text
from ftcore.wording import printable

LINE_BYTES_MAX = 1 << 20
"""Longest line of text; a longer one is read in pieces of this size."""
JSON_BYTES_MAX = 64 << 20
"""Longest JSON line."""
BINARY_SHARE = 0.1
"""Share of NUL and other control bytes in a line above which the file is not text."""

NO_FAULT = "none"
"""Class and role of a text without a fault."""

_CONTROL = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})


async def classify(args: argparse.Namespace) -> int:
    """Classify a text, or the text in each JSON line."""
    extra = _rules(args.policy) if args.policy is not None else ()
    with _opened(args.file) as file:
        if args.jsonl:
            for item in _items(file, args.file):
                text = item.pop("text")
                print_json(item | {"text": text} | as_json(classify_text(text, extra)))
            return 0
        diagnosis = _read(file, args.file, extra)
    if args.format == "json":
        print_json(as_json(diagnosis))
    else:
        _print(diagnosis)
    return 0


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis with the keys of the fault corpus; class, role and action are ``none`` if there is no fault."""
    return {
        "class": NO_FAULT if diagnosis.faultless else str(diagnosis.cls),
        "detail": diagnosis.detail,
        "role": NO_FAULT if diagnosis.faultless else diagnosis.role,
        "certain": diagnosis.certain,
        "action": str(diagnosis.action),
        "root_rank": diagnosis.root_rank,
        "node_at_fault": "y" if diagnosis.node_at_fault else "n",
        "reason": diagnosis.reason,
        "rule": diagnosis.rule,
        "evidence": list(diagnosis.evidence),
        "missing": list(diagnosis.missing),
        "advice": "" if diagnosis.faultless else _advice(diagnosis),
        "settings": settings_for(diagnosis.cls, diagnosis.detail),
    }


def _advice(diagnosis: Diagnosis) -> str:
    if diagnosis.cls is FaultClass.UNKNOWN:
        return f"read also: {'; '.join(diagnosis.missing)}"
    return facts_of(diagnosis.cls, diagnosis.detail).advice


def _meaning(diagnosis: Diagnosis) -> str:
    return facts_of(diagnosis.cls, diagnosis.detail).meaning


def _rules(path: str) -> tuple[Rule, ...]:
    from ftcore.launch.policy_file import parsed

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a policy file ({error})") from None
    loaded = parsed(text, path)
    return extra_rules(loaded.rules, f"{path}: faults.rules")


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(name, "rb")  # noqa: SIM115 -- closed below; only errors of open() are handled here
    except OSError as error:
        raise UsageError(
            f"{name}: cannot be read ({error.strerror}); expected a file, or - for standard input"
        ) from None
    with file:
        yield file


def _read(file: BinaryIO, name: str, extra: tuple[Rule, ...]) -> Diagnosis:
    reader = TextReader(extra)
    total = 0
    for line in _lines(file, name, LINE_BYTES_MAX):
        if total < LINE_BYTES_MAX:
            _must_be_text(line, name, total)
        total += len(line)
        # cut characters and other encodings are common in output: they become replacement characters
        for part in line.decode("utf-8", "replace").splitlines():
            reader.add(part)
    if not total:
        raise UsageError(f"{name}: is empty; expected the text of a log")
    return reader.result()


def _lines(file: BinaryIO, name: str, size: int) -> Iterator[bytes]:
    try:
        while line := file.readline(size):
            yield line
    except OSError as error:
        raise UsageError(f"{name}: cannot be read ({error.strerror})") from None


def _must_be_text(line: bytes, name: str, offset: int) -> None:
    odd = len(line) - len(line.translate(None, _CONTROL))
    if odd > BINARY_SHARE * len(line) and odd > 4:
        raise UsageError(f"{name}: not text: {odd} of {len(line)} bytes after byte {offset} are control characters")


def _items(file: BinaryIO, name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, without empty lines."""
    number, count = 0, 0
    for line in _lines(file, name, JSON_BYTES_MAX):
        number += 1
        where = f"{name}: line {number}"
        if not line.strip():
            continue
        if not line.endswith(b"\n") and len(line) == JSON_BYTES_MAX:
            raise UsageError(f"{where}: longer than {JSON_BYTES_MAX >> 20} MiB")
        try:
            item = msgspec.json.decode(line.strip().removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{where}: not JSON ({error}); expected one object a line, with the key text") from None
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            raise UsageError(f"{where}: expected an object whose key text is a string")
        count += 1
        yield item
    if not count:
        raise UsageError(f"{name}: is empty; expected JSON lines, each an object with the key text")


def _print(diagnosis: Diagnosis) -> None:
    colour = wants_colour()
    if diagnosis.faultless:
        rows = [
            ("class", "none: no fault was found"),
            ("reason", diagnosis.reason),
            ("advice", "if the job failed nevertheless, read the output of every rank and the kernel log of its node"),
        ]
    else:
        rows = _rows(diagnosis)
    for name, text in rows:
        print(f"{paint(f'{name:<9}', 'strong', colour)} {printable(text)}")
    print(paint("last lines" if diagnosis.cls is FaultClass.UNKNOWN else "evidence", "strong", colour))
    for line in diagnosis.evidence:
        print(f"  {printable(line)}")


def _rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    began = f"; it began with {diagnosis.root_rank}" if diagnosis.root_rank else ""
    doubt = "" if diagnosis.certain else "; the evidence does not show which rank failed first"
    rows = [
        (
            "class",
            f"{diagnosis.cls}{f' ({diagnosis.detail})' if diagnosis.detail else ''}: {_meaning(diagnosis)}",
        ),
        ("role", f"{diagnosis.role}{began or doubt}"),
        ("action", str(diagnosis.action)),
        ("node", _node(diagnosis)),
        ("reason", f"{diagnosis.reason}{f' (rule {diagnosis.rule})' if diagnosis.rule else ''}"),
        ("advice", _advice(diagnosis)),
        ("settings", settings_for(diagnosis.cls, diagnosis.detail)),
    ]
    return [(name, text) for name, text in rows if text]


def _node(diagnosis: Diagnosis) -> str:
    if not diagnosis.node_at_fault:
        return "no evidence against the machine"
    if diagnosis.certain:
        return "the machine is suspected"
    return "a machine, or the link between two machines, is suspected; check the pair to find out which"
