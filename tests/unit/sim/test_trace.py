"""Trace files: both kinds are read, what is wrong is told with its line."""

import pytest

from ftcore.errors import UsageError
from ftcore.sim.evidence import JOIN, PREEMPTED
from ftcore.sim.trace import TraceFault, parse, render

HEAD = "seconds\tnode\tkind\n"


def test_a_trace_is_read_as_it_was_written() -> None:
    """Rendering and parsing give the same faults."""
    faults = (
        TraceFault(time_s=1.5, node=0, kind="killed"),
        TraceFault(time_s=90_000.25, node=7, kind="gpu", stays=True),
    )
    trace = parse(render(faults), "trace.tsv")
    assert trace.faults == faults
    assert trace.nodes == 8
    assert not trace.fleet


def test_a_fleets_names_become_places() -> None:
    """Nodes of a spot fleet get places in the order in which they come, and keep them."""
    text = "ms\tevent\tnode\n0\tadd\tb\n500\tadd\ta\n60000\tremove\tb\n90000\tadd\tb\n"
    trace = parse(text, "spot.tsv")
    assert trace.fleet
    assert trace.nodes == 2
    assert [(fault.time_s, fault.node, fault.kind) for fault in trace.faults] == [
        (0.0, 0, JOIN),
        (0.5, 1, JOIN),
        (60.0, 0, PREEMPTED),
        (90.0, 0, JOIN),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: found nothing; expected the columns"),
        ("time,node\n", "line 1: found 'time,node'; expected the columns"),
        (HEAD, "holds no line behind its first"),
        (HEAD + "1\t0\n", "line 2: found 2 columns; expected 3"),
        (HEAD + "1\t0\tkilled\n# a remark\n\nx\t0\tkilled\n", "line 5: found 'x'; expected seconds"),
        (HEAD + "nan\t0\tkilled\n", "line 2: found 'nan'; expected seconds"),
        (HEAD + "-1\t0\tkilled\n", "line 2: found '-1'; expected seconds, not negative"),
        (HEAD + "1\t0.5\tkilled\n", "line 2: found '0.5'; expected a place"),
        (HEAD + "1\t0\tkiled\n", "line 2: no kind of fault is called 'kiled'; did you mean 'killed'?"),
        (HEAD + "2\t0\tkilled\n1\t0\tkilled\n", "line 3: not in order of time: 1 s stands behind 2 s"),
        ("seconds\tnode\tkind\tstays\n1\t0\tgpu\tmaybe\n", "line 2: found 'maybe'; expected yes or no"),
        ("ms\tevent\tnode\n0\tremove\ta\n", "line 2: 'a' is removed and was not there"),
        ("ms\tevent\tnode\n0\tcrash\ta\n", "line 2: found 'crash'; expected add or remove"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, told: str) -> None:
    """A trace that cannot be used is one message that names file, line and what was expected."""
    with pytest.raises(UsageError) as error:
        parse(text, "trace.tsv")
    assert str(error.value).startswith("trace.tsv")
    assert told in str(error.value)
