"""Properties of a log: expressions, named checks, the first failure."""

import msgspec
import pytest

from ftcore.cli.ctl_replay_parser import CHECK_NAMES
from ftcore.errors import UsageError
from ftcore.events.envelope import Event, Unknown
from ftcore.events.registry import Kind
from ftcore.events.world import WorldFormed
from ftcore.replay.bisect import CheckBisector, ExpressionBisector
from ftcore.replay.checks import CHECKS
from ftcore.replay.differences import ABSENT, StateDiffer
from ftcore.replay.expressions import STEPS_MAX, StateExpression
from ftcore.replay.reading import fold_log, read
from ftcore.replay.verification import MISMATCHES_MAX
from ftcore.states.model import JobState
from ftcore.testing.driver import JobDriver


def driven() -> JobDriver:
    driver = JobDriver(nodes=2, slots=2)
    driver.start()
    driver.make_steps(9)
    driver.fail("node0", exitcode=-9)
    driver.settle()
    driver.make_steps(5)
    return driver


def judged(text: str, events: list[Event]):
    reader = ExpressionBisector(StateExpression(text))
    read(events, reader)
    reader.close()
    return reader.result


def value(text: str, events: list[Event]):
    return StateExpression(text).value(fold_log(events), events[-1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('phase == "running" and run == 1', True),
        ("len(membership.nodes)", 2),
        ('all(n.phase == "running" for n in membership.nodes)', True),
        ('any(n.node == "node1" and not n.slots > 2 for n in membership.nodes if n.phase != "lost")', True),
        ("sum(n.slots for n in membership.nodes) * 2 - 1", 7),
        ("max(n.slots for n in membership.nodes) / 2", 1.0),
        ('membership.nodes["node1"].slots', 2),
        ('membership.nodes["gone"].slots', None),
        ("incident.fault.cls", None),
        ("incident.revision < 3", False),
        ("incident is None", True),
        ('phase in ("running", "paused")', True),
        ('phase not in ["running"]', False),
        ("1 < run + 1 <= 2", True),
        ('"no step" if training.step is None else event.kind', "decision"),
        ("state.seq == event.seq", True),
        ("min(x.slots for x in incident)", None),
        ("-run", -1),
        ("any(run > 0 for run in (5, 1)) and run < 3", True),
        ("any(any(run > 2 for run in (5, 1)) and run == 7 for run in (7, 8)) and run == 1", True),
    ],
)
def test_expressions(text, expected):
    """Each part of the language has the documented meaning; a field of None is None."""
    events = driven().events
    assert value(text, events) == expected


@pytest.mark.parametrize(
    "text",
    [
        "().__class__",
        "membership._index",
        "state.__init__",
        "__import__('os')",
        "open('/etc/passwd')",
        "phase.upper()",
        "membership.nodes.values()",
        "[x for x in membership.nodes]",
        "(lambda: 1)()",
        "len(membership.nodes, 1)",
        "any(a for a in run for b in run)",
        "2 ** 100",
        "'a' % 1",
        "f'{phase}'",
        "phase := 1",
        "b'x' == 1",
        "run ==",
        "import os",
        "x" * 3000,
        "(" * 250 + "1" + ")" * 250,
        "not " * 400 + "run",
    ],
)
def test_what_is_refused(text):
    """Anything outside the language is refused before it is evaluated, with one message."""
    with pytest.raises(UsageError):
        StateExpression(text)


@pytest.mark.parametrize(
    "text", ["trainig.step", "training.stp", "'a' + 1", "run / 0", "len(run)", "phase < 3", "'a' * 9"]
)
def test_what_does_not_fit_the_state(text):
    """An unknown name, an unknown field, types that do not fit: one message."""
    with pytest.raises(UsageError):
        value(text, driven().events)


def test_the_work_is_bounded():
    """Nested loops end with a message."""
    text = "1"
    for name in "abcde":
        text = f"sum({text} for {name} in membership.nodes)"
    driver = JobDriver(nodes=20)
    driver.start()
    with pytest.raises(UsageError, match=str(STEPS_MAX)):
        value(text, driver.events)


def test_the_first_failure_and_the_return():
    """A property that comes and goes: the first event at which it fails, and that at which it holds again."""
    events = driven().events
    found = judged("incident is None", events)
    opened = next(event.seq for event in events if event.type == "incident.opened")
    closed = next(event.seq for event in events if event.type == "incident.resolved")
    assert (found.first_failure.seq, found.holds_again.seq, found.count) == (opened, closed, 3)
    assert judged("run >= 0", events).first_failure is None


def test_states_within_a_group_do_not_count():
    """Between a fact and its decisions the state is on its way: only the end of the group is judged."""
    events = driven().events
    group = next(event for event in events if event.type == "incident.opened").cause
    found = judged(f"state.seq != {group}", events)
    assert found.first_failure is None, "the group went on"


def test_every_event_counts_for_an_expression_of_events():
    """A property of events is judged at each: at a fact before its decisions, at a decision."""
    events = driven().events
    for kind in ("worker.failed", "incident.opened", "world.formed"):
        seqs = [event.seq for event in events if event.type == kind]
        found = judged(f'event.type != "{kind}"', events)
        assert [turning.seq for turning in found.turnings if not turning.holds] == seqs
        assert found.holds_again.seq == seqs[0] + 1


def test_an_event_that_may_not_be_skipped():
    """What follows it is not judged, nor is its group, and the result says so."""
    events = driven().events
    odd = msgspec.structs.replace(events[20], type="moon.risen", v=1, data=Unknown(fields={}), ignorable=False)
    found = judged("run >= 0", [*events[:20], odd, *events[21:]])
    assert odd.kind is Kind.DECISION and found.events == odd.cause - 1
    assert found.first_failure is None and "moon.risen" in found.unknown


def test_the_last_group_of_a_log_that_was_cut_off():
    """It may lack decisions, so a state within it is not judged."""
    events = driven().events
    group = next(event for event in events if event.type == "incident.opened").cause
    reader = ExpressionBisector(StateExpression(f"state.seq != {group}"))
    read(events[:group], reader)
    reader.close(cut=True)
    assert reader.result.first_failure is None and reader.result.events == group - 1


def broken(name: str, events: list[Event]) -> tuple[list[Event], int]:
    """The log with one event that violates a check, and the seq at which it must be found."""
    at = {
        "facts-in-order": lambda e: e.source == "node1" and e.id.n == 2,
        "terms-rise": lambda e: e.type == "incident.opened",
        "decisions-follow-facts": lambda e: e.type == "incident.opened",
        "one-incident": lambda e: e.type == "incident.resolved",
        "rounds-rise": lambda e: e.type == "world.formed" and e.data.round == 2,
        "results-follow-orders": lambda e: e.type == "action.done",
        "decisions-agree": lambda e: e.type == "incident.opened",
    }[name]
    place = next(place for place, event in enumerate(events) if at(event))
    event, replace = events[place], msgspec.structs.replace
    if name == "facts-in-order":
        event = replace(event, id=event.id._replace(n=1))
    elif name == "terms-rise":
        event = replace(event, time=event.time - 10**9)
    elif name == "decisions-follow-facts":
        event = replace(event, cause=event.cause - 1)
    elif name == "one-incident":
        opened = next(event for event in events if event.type == "incident.opened")
        event = replace(opened, seq=event.seq, incident="i2")
    elif name == "rounds-rise":
        event = replace(event, data=msgspec.structs.replace(event.data, round=1))
        assert isinstance(event.data, WorldFormed)
    elif name == "results-follow-orders":
        event = replace(event, data=msgspec.structs.replace(event.data, effect="nothing.1.1"))
    else:
        event = replace(event, data=msgspec.structs.replace(event.data, kind="warning"))
    return [*events[:place], event, *events[place + 1 :]], event.seq


@pytest.mark.parametrize("name", CHECKS)
def test_named_checks(name):
    """A log of the engine passes each check; a log with one wrong event fails it there."""
    events = driven().events
    good = CheckBisector(CHECKS[name]())
    read(events, good)
    good.close()
    assert good.result.first_failure is None and good.result.events == len(events)
    wrong, seq = broken(name, events)
    bad = CheckBisector(CHECKS[name]())
    read(wrong, bad)
    bad.close()
    found = bad.result.first_failure
    assert found is not None and found.why and found.seq == seq


def checked(events: list[Event], *, cut: bool = False):
    reader = CheckBisector(CHECKS["decisions-agree"]())
    read(events, reader)
    reader.close(cut=cut)
    return reader.result


def test_the_last_group_is_judged():
    """A decision that is altered or missing in the last group; of a log that was cut off, none is missing."""
    events = driven().events
    end = max(place for place, event in enumerate(events) if event.type == "incident.opened")
    changed = msgspec.structs.replace(events[end], data=msgspec.structs.replace(events[end].data, kind="warning"))
    altered, missing = checked([*events[:end], changed]), checked(events[:end])
    for found in (altered, missing):
        assert found.first_failure.seq == end + 1 and found.count == 1
    assert missing.first_failure.why.startswith("missing decision incident.opened")
    assert checked(events[:end], cut=True).first_failure is None


def test_every_difference_is_counted():
    """Every group with a difference is found, each at its own event; after too many the result says so."""
    events = driven().events
    at = [place for place, event in enumerate(events) if event.kind is Kind.DECISION]
    wrong = list(events)
    for place in at:
        wrong[place] = msgspec.structs.replace(events[place], time=events[place].time + 1)
    found = checked(wrong)
    groups = list(dict.fromkeys(events[place].cause for place in at))
    first = [min(events[place].seq for place in at if events[place].cause == fact) for fact in groups]
    kept = min(len(first), MISMATCHES_MAX)
    assert [turning.seq for turning in found.turnings] == first[:kept] and found.count == kept
    assert bool(found.unknown) is (len(first) >= MISMATCHES_MAX)


def test_the_parser_names_every_check():
    """The parser has the names without importing the checks."""
    assert tuple(CHECKS) == CHECK_NAMES


def test_differences_name_fields_and_events():
    """Changed fields by path, old and new, with the events that changed them; what changed back is not listed."""
    events = driven().events
    opened = next(event.seq for event in events if event.type == "incident.opened")
    differ = StateDiffer(fold_log(events[: opened - 1]))
    for event in events[opened - 1 :]:
        differ.feed(event)
    changes = {change.path: change for change in differ.changes()}
    world = changes["rounds.world.round"]
    formed = next(event.seq for event in events if event.type == "world.members" and event.seq > opened)
    assert (world.old, world.new, world.events) == (1, 2, [formed])
    assert "phase" not in changes and "seq" not in changes
    assert differ.state == fold_log(events)


def test_differences_without_attribution():
    """The differences are the same if the events are not attributed."""
    events = driven().events
    told, plain = (StateDiffer(JobState(), attribute=attribute) for attribute in (True, False))
    for event in events:
        told.feed(event)
        assert plain.feed(event) == []
    pairs = [[(change.path, change.old, change.new) for change in differ.changes()] for differ in (told, plain)]
    assert pairs[0] == pairs[1] and any(old == ABSENT for _, old, _ in pairs[0])
    assert all(change.count == 0 for change in plain.changes())
