"""The family of timers: its keys in logs and snapshots, and its expiry."""

import re
from pathlib import Path

import pytest

import ftcore
from ftcore.events.envelope import Kind
from ftcore.logs.archive import read_events
from ftcore.states import timers
from ftcore.states.fold import fold
from ftcore.states.job import JobPhase
from ftcore.states.model import JobState
from ftcore.states.timers import TIMERS, Timer, UnknownTimer, parse

LOGS = sorted((Path(__file__).parents[2] / "golden" / "logs").glob("*/*.ftlog"))

KEYS: dict[str, Timer] = {
    "join": timers.JoinTimer(),
    "diagnosis": timers.DiagnosisTimer(),
    "backoff/3": timers.BackoffTimer(3),
    "window/3": timers.WindowTimer(3),
    "return/3": timers.ReturnTimer(3),
    "settle/3": timers.SettleTimer(3),
    "outcome/12": timers.OutcomeTimer(12),
    "action/r3.start/1": timers.ActionTimer("r3.start/1"),
    "departure": timers.DepartureTimer(),
    "offer": timers.OfferTimer(),
    "manifest": timers.ManifestTimer(),
    "disruption/maintenance-notice/node1": timers.DisruptionTimer("maintenance-notice/node1"),
}
"""A key of every kind, as in released logs: entries are only added, never changed."""


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_a_log_means_a_timer_and_the_timer_makes_that_key(key: str):
    """Keys of released logs are parsed and built unchanged."""
    assert parse(key) == KEYS[key]
    assert KEYS[key].key == key


def test_the_family_is_closed():
    """Every kind has a key above, a meaning and an expiry; no two kinds share the first part of the key."""
    assert {type(timer) for timer in KEYS.values()} == {*TIMERS}
    assert len({kind.kind for kind in TIMERS}) == len(TIMERS)
    assert all(kind.__doc__ and kind.expiry for kind in TIMERS)


@pytest.mark.parametrize(
    "key", ["", "later", "settle", "settle/", "settle/x", "settle/03", "settle/٣", "settle/" + "9" * 5000, "join/1"]
)
def test_an_unknown_key_is_kept_as_it_is(key: str):
    """A timer of a newer ftcore keeps its key, runs until it expires, and survives the end of a plan."""
    assert parse(key) == UnknownTimer(key)
    assert parse(key).key == key
    state = JobState()
    timers.start(state, parse(key), 5, 0.0)
    timers.cancel_of_plan(state)
    assert state.deadlines == {key: 5}
    assert timers.expire(state, key, 5) == UnknownTimer(key)
    assert state.deadlines == {}


def test_a_restarted_timer_does_not_expire_at_its_old_time():
    """An expiry must have the timer's time; an expiry without a time always matches."""
    state = JobState()
    timers.start(state, timers.OfferTimer(), 1, 2.0)
    assert timers.due(state, timers.OfferTimer()) == 2_000_000_001
    assert timers.expire(state, "offer", 1_000_000_001) is None
    assert timers.is_running(state, timers.OfferTimer())
    assert timers.expire(state, "offer", 0) == timers.OfferTimer()
    assert timers.due(state, timers.OfferTimer()) is None


def test_timers_of_a_plan_end_with_it():
    """Timers of rounds, of a departure and of a diagnosis end with the plan; all others keep running."""
    state = JobState()
    for timer in KEYS.values():
        timers.start(state, timer, 0, 1.0)
    timers.cancel_of_plan(state)
    assert [*state.deadlines] == [
        "join",
        "action/r3.start/1",
        "offer",
        "manifest",
        "disruption/maintenance-notice/node1",
    ]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_timer_runs_in_the_phases_that_it_declares(path: Path):
    """In no stored log a timer runs in another phase once a turn is over."""
    state = JobState()
    for event in read_events(path):
        if event.kind is Kind.FACT:
            for key in state.deadlines:
                assert state.phase in (*parse(key).phases, JobPhase.STUCK), (state.seq, key, state.phase)
        fold(state, event)


def test_no_other_module_reads_or_writes_keys():
    """Only the module of the timers accesses the deadlines of a state."""
    package = Path(ftcore.__file__).parent
    elsewhere = [path for path in package.rglob("*.py") if re.search(r"\bstate\.deadlines\b", path.read_text())]
    assert elsewhere == [package / "states" / "timers.py"]
