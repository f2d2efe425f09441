"""``ftctl spikes``: runs the loss and gradient norm detectors on a curve in a file.

The file is text: a header with the columns ``step``, ``loss`` and optionally ``grad_norm``, then one line per step.
Columns are separated by tabs, or by commas if the header has no tab. Other columns are ignored. An empty cell means
that no value was reported. Lines are read one by one, so the file may be larger than memory.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import attrs

from ftcore.cli.ctl_output import console, print_json, say, table
from ftcore.errors import UsageError
from ftcore.faults.detectors import Finding, LossDetector, NormSpike, NormThreshold
from ftcore.faults.detectors.loss import LIMIT
from ftcore.faults.detectors.suggest import NormalRun, Suggestion
from ftcore.wording import plural

LINE_BYTES_MAX = 65536
STEP_MAX = 2**63 - 1
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE)


@attrs.frozen
class CurvePoint:
    """One line of a curve; None: not reported."""

    step: int
    loss: float | None
    norm: float | None


@attrs.define
class SpikeReport:
    """The result for a curve: number of samples, of steps that went back, and flagged steps."""

    samples: int = 0
    went_back: int = 0
    found: list[Finding] = attrs.field(factory=list)


async def spikes(args: argparse.Namespace) -> int:
    """Show the steps that the detectors flag, or suggest thresholds."""
    detectors = (LossDetector(limit=args.limit), NormSpike(), NormThreshold(args.norm_threshold))
    report, normal, last = SpikeReport(), NormalRun(), -1
    for sample in _samples(args.file):
        report.samples += 1
        report.went_back += sample.step <= last
        last = sample.step
        _judge(sample, detectors, report)
        normal.observe(sample.step, sample.loss, sample.norm)
    suggestion = normal.suggestion() if args.suggest else None
    if args.format == "json":
        print_json(_as_json(args.file, report, suggestion))
    elif suggestion is not None:
        _print_suggestion(report, suggestion)
    else:
        _print_found(report)
    return 0


def _judge(sample: CurvePoint, detectors: tuple[LossDetector, NormSpike, NormThreshold], report: SpikeReport) -> None:
    loss, spike, threshold = detectors
    found = []
    if sample.loss is not None:
        found.append(loss.observe(sample.step, sample.loss))
    if sample.norm is not None:
        found += [spike.observe(sample.step, sample.norm), threshold.observe(sample.step, sample.norm)]
    report.found += [finding for finding in found if finding is not None]


# -- reading


def _samples(path: str) -> Iterator[CurvePoint]:
    try:
        if path == "-":
            yield from read_curve(sys.stdin.buffer, "standard input")
        else:
            with open(path, "rb") as file:
                yield from read_curve(file, path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None


def read_curve(file: BinaryIO, name: str) -> Iterator[CurvePoint]:
    """The samples of a curve, line by line.

    Args:
        file: the text, open for reading bytes.
        name: the file's name in errors.

    Raises:
        UsageError: the file is not a curve; names file, line, found and expected text.
    """
    places: dict[str, int] | None = None
    separator, empty = "\t", True
    for number, line in _lines(file, name):
        if places is None:
            separator = "," if "," in line and "\t" not in line else "\t"
        cells = line.split(separator)
        if places is None:
            places = _header(cells, f"{name}:{number}")
            continue
        if not line.strip():
            continue
        empty = False
        yield _sample(cells, places, f"{name}:{number}")
    if empty:
        what = "it is empty" if places is None else "it has a header and no samples"
        raise UsageError(
            f"{name}: {what}; expected a header, and lines with step and loss, separated by tabs or commas"
        )


def _lines(file: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
    number = 0
    while raw := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(raw) > LINE_BYTES_MAX:
            raise UsageError(f"{name}:{number}: a line of more than {LINE_BYTES_MAX} bytes; is this a curve?")
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"{name}:{number}: not UTF-8 text; is this a curve?") from None
        yield number, line.rstrip("\r\n")


def _header(cells: list[str], where: str) -> dict[str, int]:
    names = [cell.strip() for cell in cells]
    places = {name: place for place, name in enumerate(names) if name in ("step", "loss", "grad_norm")}
    missing = [name for name in ("step", "loss") if name not in places]
    if missing:
        found = ", ".join(repr(name[:40]) for name in names[:8])
        hint = "; columns are separated by tabs or commas" if len(names) == 1 else ""
        raise UsageError(f"{where}: no column {' and '.join(missing)} in the header: found {found}{hint}")
    for name in places:
        if names.count(name) > 1:
            raise UsageError(f"{where}: column {name} occurs twice in the header")
    return places


def _sample(cells: list[str], places: dict[str, int], where: str) -> CurvePoint:
    step = _number(cells, places, "step", where)
    if step is None or not 0 <= step <= STEP_MAX or step != int(step):
        found = cells[places["step"]][:40] if places["step"] < len(cells) else ""
        raise UsageError(f"{where}: column step: expected a whole number from 0, found {found!r}")
    text = cells[places["step"]].strip()
    return CurvePoint(
        int(text) if text.isdecimal() else int(step),
        _number(cells, places, "loss", where),
        _number(cells, places, "grad_norm", where) if "grad_norm" in places else None,
    )


def _number(cells: list[str], places: dict[str, int], name: str, where: str) -> float | None:
    place = places[name]
    if place >= len(cells):
        if name == "grad_norm":
            return None
        raise UsageError(f"{where}: {len(cells)} columns, none for {name}; expected at least {place + 1}")
    text = cells[place].strip()
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{where}: column {name}: expected a number, found {text[:40]!r}")
    return float(text)


# -- output


def _as_json(name: str, report: SpikeReport, suggestion: Suggestion | None) -> dict[str, Any]:
    made: dict[str, Any] = {
        "file": name,
        "samples": report.samples,
        "went_back": report.went_back,
        "steps": sorted({finding.step for finding in report.found}),
        "flagged": [
            {
                "step": finding.step,
                "kind": finding.kind,
                "value": _finite(finding.value),
                "usual": _finite(finding.usual),
                "score": _finite(finding.score),
                "limit": finding.limit,
                "since": finding.since,
            }
            for finding in report.found
        ],
    }
    if suggestion is not None:
        made["suggest"] = {
            "normal": not _troubles(report),
            "judged": suggestion.judged,
            "score_max": suggestion.score_max,
            "limit": suggestion.limit,
            "norm_max": suggestion.norm_max,
            "norm_threshold": suggestion.norm_threshold,
        }
    return made


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _troubles(report: SpikeReport) -> list[str]:
    """Why the run cannot be an example of a normal run; empty if it can."""
    kinds = [finding.kind for finding in report.found]
    return [
        f"{kinds.count(kind)} {kind}"
        for kind in ("loss-nan", "loss-divergence", "norm-nan", "norm-divergence")
        if kind in kinds
    ]


def _print_found(report: SpikeReport) -> None:
    if report.found:
        rows = table(
            "STEP", "KIND", "VALUE", "USUAL", "SCORE", "SINCE", right=("STEP", "VALUE", "USUAL", "SCORE", "SINCE")
        )
        for found in report.found:
            usual = "-" if math.isnan(found.usual) else f"{found.usual:.6g}"
            row = (str(found.step), found.kind, f"{found.value:.6g}", usual, f"{found.score:.1f}", str(found.since))
            rows.add_row(*row)
        console().print(rows)
    episodes = len({(finding.kind.split("-")[0], finding.since) for finding in report.found})
    back = f"; the step number went back {plural(report.went_back, 'time')}" if report.went_back else ""
    say(f"{plural(report.samples, 'sample')}, {len(report.found)} flagged in {plural(episodes, 'episode')}{back}")


def _print_suggestion(report: SpikeReport, made: Suggestion) -> None:
    if made.limit is None:
        say("no limit for the loss: a suggestion needs 20 samples, and then one at step 100 or later")
    else:
        print(f"loss limit {made.limit:g}: the largest of {made.judged} scores was {made.score_max:.1f}")
        if made.limit < LIMIT:
            say(f"the default of {LIMIT:g} does not flag this run either")
    spikes = [finding.step for finding in report.found if finding.kind == "loss-spike"]
    if made.limit is not None and made.limit > LIMIT and spikes:
        times = plural(len(spikes), "spike")
        say(f"the suggestion ignores {times}, the first at step {spikes[0]}; if one was a fault, use another run")
    if made.norm_threshold is not None:
        print(f"gradient norm threshold {made.norm_threshold:g}: the largest after start-up was {made.norm_max:g}")
    if troubles := _troubles(report):
        say(f"this run is not normal ({', '.join(troubles)}); use another run for a suggestion")
