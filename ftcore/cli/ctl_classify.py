"""``ftctl classify``: what a text from elsewhere means, with the rules that a running job uses.

House rules: the text is streamed, so a log of any size can be read; what is no text is refused with its place. Of JSON
lines only ``text`` is read, whatever else stands in them: a label that came along is never looked at.
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
from ftcore.faults.taxonomy import CLASSES, FaultClass, settings_for
from ftcore.faults.text import Diagnosis, TextReader, classify_text
from ftcore.wording import clean

LINE_BYTES_MAX = 1 << 20
"""Of a line of text; a longer one is read in pieces of this size."""
JSON_BYTES_MAX = 64 << 20
"""Of one JSON line."""
BINARY_SHARE = 0.1
"""Of NUL and other control bytes in the first block: more than this, and it is no text."""

NO_FAULT = "none"
"""Class and role of a text in which no fault was found."""

_CONTROL = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})


async def classify(args: argparse.Namespace) -> int:
    """Say what a text, or the text in each of many JSON lines, means."""
    extra = _rules(args.policy) if args.policy is not None else ()
    with _opened(args.file) as file:
        if args.jsonl:
            for item in _items(file, args.file):
                text = item.pop("text")
                print_json(item | {"text": text} | as_json(classify_text(text, extra)))
            return 0
        told = _read(file, args.file, extra)
    if args.format == "json":
        print_json(as_json(told))
    else:
        _print(told)
    return 0


def as_json(told: Diagnosis) -> dict[str, Any]:
    """A diagnosis, with the keys of the corpus; class, role and action are ``none`` where no fault was found."""
    return {
        "class": NO_FAULT if told.faultless else str(told.cls),
        "detail": told.detail,
        "role": NO_FAULT if told.faultless else told.role,
        "certain": told.certain,
        "action": str(told.action),
        "root_rank": told.root_rank,
        "node_at_fault": "y" if told.node_at_fault else "n",
        "reason": told.reason,
        "rule": told.rule,
        "evidence": list(told.evidence),
        "missing": list(told.missing),
        "advice": "" if told.faultless else _advice(told),
        "settings": settings_for(told.cls, told.detail),
    }


def _advice(told: Diagnosis) -> str:
    if told.cls is FaultClass.UNKNOWN:
        return f"read as well: {'; '.join(told.missing)}"
    return CLASSES[told.cls].advice


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
        file = open(name, "rb")  # noqa: SIM115 -- closed below; only the opening may fail here
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
        # half characters and other encodings are usual in output: they are shown as question marks
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
        raise UsageError(f"{name}: no text: {odd} of {len(line)} bytes from byte {offset} on are control characters")


def _items(file: BinaryIO, name: str) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; empty lines are passed over."""
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
            raise UsageError(f"{where}: expected an object with the key text and a string there")
        count += 1
        yield item
    if not count:
        raise UsageError(f"{name}: is empty; expected JSON lines, each an object with the key text")


def _print(told: Diagnosis) -> None:
    colour = wants_colour()
    if told.faultless:
        rows = [
            ("class", "none: no fault was found"),
            ("reason", told.reason),
            ("advice", "if the job failed all the same, read the output of every rank and the kernel log of its node"),
        ]
    else:
        rows = _rows(told)
    for name, text in rows:
        print(f"{paint(f'{name:<9}', 'strong', colour)} {clean(text)}")
    print(paint("last lines" if told.cls is FaultClass.UNKNOWN else "evidence", "strong", colour))
    for line in told.evidence:
        print(f"  {clean(line)}")


def _rows(told: Diagnosis) -> list[tuple[str, str]]:
    began = f"; it began with {told.root_rank}" if told.root_rank else ""
    doubt = "" if told.certain else "; the evidence does not say who began"
    rows = [
        ("class", f"{told.cls}{f' ({told.detail})' if told.detail else ''}: {CLASSES[told.cls].meaning}"),
        ("role", f"{told.role}{began or doubt}"),
        ("action", str(told.action)),
        ("node", _node(told)),
        ("reason", f"{told.reason}{f' (rule {told.rule})' if told.rule else ''}"),
        ("advice", _advice(told)),
        ("settings", settings_for(told.cls, told.detail)),
    ]
    return [(name, text) for name, text in rows if text]


def _node(told: Diagnosis) -> str:
    if not told.node_at_fault:
        return "nothing speaks against the machine"
    if told.certain:
        return "there is reason to suspect the machine"
    return "a machine or the link between two is to be suspected; a check of the pair says which"
