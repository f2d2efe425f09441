"""Trace files: both formats, and errors with line numbers."""

import pytest

from ftcore.errors import UsageError
from ftcore.sim.evidence import JOIN, PREEMPTED
from ftcore.sim.trace import TraceFault, parse

HEAD = "seconds\tnode\tkind\n"


def test_a_trace_is_read() -> None:
    text = "seconds\tnode\tkind\tstays\n1.5\t0\tkilled\tno\n90000.25\t7\tgpu\tyes\n"
    trace = parse(text, "trace.tsv")
    assert trace.faults == (
        TraceFault(time_s=1.5, node=0, kind="killed"),
        TraceFault(time_s=90_000.25, node=7, kind="gpu", stays=True),
    )
    assert trace.nodes == 8
    assert not trace.fleet


def test_a_fleets_names_become_places() -> None:
    """Nodes of a spot fleet get places in order of first appearance, and keep them."""
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
        (HEAD, "no faults after the header line"),
        (HEAD + "1\t0\n", "line 2: found 2 columns; expected 3"),
        (HEAD + "1\t0\tkilled\n# a remark\n\nx\t0\tkilled\n", "line 5: found 'x'; expected seconds"),
        (HEAD + "nan\t0\tkilled\n", "line 2: found 'nan'; expected seconds"),
        (HEAD + "-1\t0\tkilled\n", "line 2: found '-1'; expected seconds, not negative"),
        (HEAD + "1\t0.5\tkilled\n", "line 2: found '0.5'; expected a place"),
        (HEAD + "1\t0\tkiled\n", "line 2: unknown kind of fault 'kiled'; did you mean 'killed'?"),
        (HEAD + "2\t0\tkilled\n1\t0\tkilled\n", "line 3: not in order of time: 1 s follows 2 s"),
        ("seconds\tnode\tkind\tstays\n1\t0\tgpu\tmaybe\n", "line 2: found 'maybe'; expected yes or no"),
        ("ms\tevent\tnode\n0\tremove\ta\n", "line 2: remove of 'a', which was not added"),
        ("ms\tevent\tnode\n0\tcrash\ta\n", "line 2: found 'crash'; expected add or remove"),
    ],
)
def test_errors_have_a_line(text: str, told: str) -> None:
    """An invalid trace has one message with file, line and the text expected."""
    with pytest.raises(UsageError) as error:
        parse(text, "trace.tsv")
    assert str(error.value).startswith("trace.tsv")
    assert told in str(error.value)
