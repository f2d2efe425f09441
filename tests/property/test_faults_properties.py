"""Properties of classification: pieces do not matter, and time depends on the length of the input only."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.errors import UsageError
from ftcore.faults.classify import classify
from ftcore.faults.extra import extra_rules
from ftcore.faults.pattern import check
from ftcore.faults.rules import RULES
from ftcore.faults.scan import Scanner
from ftcore.faults.table import LINE_BYTES_MAX, table
from ftcore.faults.taxonomy import FaultClass, Remedy
from ftcore.faults.text import classify_text
from ftcore.states.evidence import Report

EXAMPLES = [rule.example.encode() for rule in RULES]
LINES = st.one_of(
    st.sampled_from(EXAMPLES),
    st.binary(max_size=60),
    st.builds(lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(0, 3 * LINE_BYTES_MAX)),
)
HOSTILE = ["a", "A", " ", "0", "/", ".", "error ", "x=", "[rank", "\u00e9", 'File "', "loss ", "#0 poll "]
HOSTILE += ["{1: 1.0, ", "norm ", "g_norm ", "step ", "10:00:00 ", "1 2 ", "| loss ", "time per step: ", "a (b.py:1) "]
NUMBERS = st.one_of(st.floats().map(repr), st.integers(-(10**12), 10**12).map(str), st.just("1e999"))
TOLD = st.sampled_from(
    [
        "loss: {}",
        "grad norm: {}",
        "step time: {}",
        "TFLOPs: {}",
        "loss scale: {}",
        "number of skipped iterations: {}",
        "step {} elapsed={}",
        "step,loss,grad_norm",
        "{},{},{}",
        "{} {}",
        "elapsed: {{a: {}, b: {}, c: {}}}",
        "{} s/it",
    ]
)
NUMBERED = st.lists(
    st.builds(lambda shape, a, b, c: shape.format(a, b, c), TOLD, NUMBERS, NUMBERS, NUMBERS), max_size=20
).map("\n".join)
STREAMS = st.lists(LINES, max_size=12).map(b"\n".join)


def hits_of(data: bytes, sizes: list[int]) -> list[tuple[str, str, int]]:
    """Return all hits of a stream in pieces of these sizes, repeated."""
    scanner, hits, at = Scanner(), [], 0
    for size in itertools.cycle(sizes):
        if at >= len(data):
            break
        hits += scanner.feed(data[at : at + size], 0)
        assert scanner.held <= 2 * LINE_BYTES_MAX
        at += size
    hits += scanner.flush(0, ended=True)
    return [(hit.rule, hit.line, hit.count) for hit in hits]


@settings(max_examples=150, deadline=None)
@given(STREAMS, st.lists(st.integers(1, 5000), min_size=1, max_size=6))
def test_pieces_do_not_matter(data: bytes, sizes: list[int]):
    """The same lines are reported however a stream is split."""
    assert hits_of(data, sizes) == hits_of(data, [len(data) + 1])


@settings(max_examples=60, deadline=None)
@given(STREAMS)
def test_the_scan_reports_what_the_table_matches(data: bytes):
    """A line is reported if and only if the table matches it to a live rule."""
    import re

    lines = [line for line in re.split(rb"[\r\n]", data) if line]
    read = [table().read(line) for line in lines]
    expected = {rule.name for rule in read if rule is not None and rule.live}
    assert {name for name, _, _ in hits_of(data, [len(data) + 1])} == expected


@settings(max_examples=150, deadline=None)
@given(
    NUMBERED | st.text(max_size=2000) | st.lists(st.sampled_from([r.example for r in RULES]), max_size=8).map("\n".join)
)
def test_any_text_has_a_diagnosis(text: str):
    """Every text has a class, a role and an action; only rules cost a node."""
    found = classify_text(text)
    assert isinstance(found.cls, FaultClass)
    assert isinstance(found.action, Remedy)
    assert found.role in ("root", "collateral", "multi")
    assert found.cls is not FaultClass.UNKNOWN or found.action is not Remedy.REPLACE_NODE


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(HOSTILE),
    st.integers(1, 40_000),
)
def test_hostile_lines_are_read(part: str, count: int):
    """Long lines of repeated pattern fragments are read in bounded time."""
    assert classify_text(part * count).role in ("root", "collateral", "multi")


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_any_pattern_is_accepted_or_refused(pattern: str):
    """A user's pattern becomes a rule or one message; an accepted rule reads any line."""
    try:
        rules = extra_rules([{"pattern": pattern, "class": "hang"}], "p")
    except UsageError as error:
        assert str(error).startswith("p[0].pattern")
        return
    check(pattern, "p")
    table(rules).read_text("any line " + pattern)


@settings(max_examples=150, deadline=None)
@given(st.integers(-64, 255), st.text(max_size=300), st.text(max_size=300))
def test_any_report_has_a_reading(code: int, message: str, tail: str):
    """Exit code, message and last output are classified together, whatever they are."""
    reading = classify(
        Report(
            seq=1,
            type="worker.failed",
            node="n",
            rank=0,
            round=1,
            time=1,
            mono=0,
            boot="",
            exitcode=code,
            message=message,
            tail=tail,
            step=None,
            absolute=False,
        )
    )
    assert reading.role in ("root", "collateral", "unknown")
    assert "\n" not in reading.summary
