"""Which notes of a node's workers the agent reports, with made-up pages and times."""

import math

from ftcore.events.checkpoint import CheckpointCommitted
from ftcore.events.worker import LASTING_NAN, NAN_STEPS, FaultObserved
from ftcore.ids import Round
from ftcore.ports import Progress
from ftcore.runtime.agent.telemetry.watch_notes import QUIET_S, NoteFact, NotesWatch
from ftcore.shm.notes import FINDINGS_MAX, SAVES_MAX, CheckpointNote, FindingNote


class Node:
    """Workers' pages around a watch."""

    def __init__(self, ranks: int, reporting: bool = False) -> None:
        self.loss = 2.0 if reporting else None
        self.watch = NotesWatch("node1")
        self.found: list[list[FindingNote]] = [[] for _ in range(ranks)]
        self.saved: list[list[CheckpointNote]] = [[] for _ in range(ranks)]
        self.watch.begin(Round(3), 8)

    def finds(self, rank: int, kind: str, step: int, since: int | None = None, value: float = 9.0) -> None:
        number = len(self.found[rank]) + 1
        self.found[rank].append(
            FindingNote(number, kind, step, step if since is None else since, 10**9 + step, value, 2.0, 30.0, 8.0)
        )

    def saves(self, rank: int, step: int) -> None:
        self.saved[rank].append(CheckpointNote(len(self.saved[rank]) + 1, step, f"/c/{step}", 1.0, 2))

    def look(self, now: float = 0.0) -> list[FaultObserved | CheckpointCommitted]:
        return [told.fact for told in self.told(now)]

    def told(self, now: float = 0.0) -> list[NoteFact]:
        pages = [
            Progress(
                steps=1,
                step=1,
                absolute=True,
                mono=1,
                loss=self.loss,
                findings=tuple(found[-FINDINGS_MAX:]),
                saves=tuple(saved[-SAVES_MAX:]),
            )
            for found, saved in zip(self.found, self.saved, strict=True)
        ]
        return self.watch.read([None, *pages], now, "life")


def test_one_of_the_ranks_is_reported() -> None:
    """The same finding of eight ranks at the same step is one fact, even if some ranks are later."""
    node = Node(8)
    for rank in range(5):
        node.finds(rank, "loss-spike", 120)
    (told,) = node.look()
    for rank in range(5, 8):
        node.finds(rank, "loss-spike", 120)
    assert node.look(1.0) == []
    assert node.look(2 * QUIET_S) == []
    assert isinstance(told, FaultObserved)
    assert (told.node, told.incarnation, told.round, told.rank) == ("node1", "life", 3, 9)
    assert (told.source, told.kind, told.step, told.absolute) == ("detector", "loss-spike", 119, True)
    figures = {"loss": 9.0, "at": 120.0, "usual": 2.0, "score": 30.0, "limit": 8.0, "count": 1.0}
    assert told.values == figures | {"ranks": 5.0, "reporting": 5.0}
    assert told.message == "loss-spike: 9 at step 120, where 2 is usual"


def votes(facts: list[FaultObserved | CheckpointCommitted]) -> list[tuple[float, float, float]]:
    """Of each report: the step, the ranks that found it, the ranks that report a loss."""
    values = [fact.values for fact in facts if isinstance(fact, FaultObserved)]
    return [(each["at"], each["ranks"], each["reporting"]) for each in values]


def test_twice_as_many_ranks_are_reported_at_once() -> None:
    """Also soon after fewer had the same finding, at that step or at another one; then that kind is quiet."""
    node = Node(8, reporting=True)
    node.finds(3, "loss-spike", 120)
    assert votes(node.look()) == [(120, 1, 8)]
    for rank in range(3):
        node.finds(rank, "loss-spike", 120)
    assert votes(node.look(1.0)) == [(120, 4, 8)]
    for rank in range(7):
        node.finds(rank, "loss-spike", 130)
    assert votes(node.look(2.0)) == []
    node.finds(7, "loss-spike", 130)
    assert votes(node.look(3.0)) == [(130, 8, 8)]
    for rank in range(8):
        node.finds(rank, "loss-spike", 140)
    assert votes(node.look(4.0)) == []
    assert votes(node.look(3 + QUIET_S)) == [(140, 8, 8)]
    node.finds(5, "loss-spike", 200)
    assert votes(node.look(4 + QUIET_S)) == []
    assert votes(node.look(4 + 3 * QUIET_S)) == [(200, 1, 8)]
    for rank in range(8):
        node.finds(rank, "loss-spike", 210)
    assert votes(node.look(5 + 3 * QUIET_S)) == [(210, 8, 8)]


def test_a_kind_is_reported_once_a_minute_with_a_count() -> None:
    """Findings within a minute are only counted; kinds are independent."""
    node = Node(1)
    node.finds(0, "loss-nan", 10, value=math.nan)
    assert len(node.look(0.0)) == 1
    for step in range(11, 40):
        node.finds(0, "loss-nan", step, since=10, value=math.nan)
        kinds = [fact.kind for fact in node.look(float(step)) if isinstance(fact, FaultObserved)]
        assert kinds == ([LASTING_NAN] if step == 10 + NAN_STEPS - 1 else [])
    node.finds(0, "norm-nan", 40)
    assert len(node.look(40.0)) == 1
    (again,) = node.look(QUIET_S)
    assert isinstance(again, FaultObserved)
    assert (again.kind, again.step, again.values["count"], again.values["at"]) == ("loss-nan", 9, 29.0, 39.0)
    assert "loss" not in again.values
    assert again.message == "loss-nan: nan at step 39, where 2 is usual, since step 10"
    assert node.look(3 * QUIET_S) == []


def test_a_new_round_reports_at_once() -> None:
    """After a rollback a recurring spike is reported at once."""
    node = Node(1)
    node.finds(0, "loss-spike", 120)
    assert len(node.look()) == 1
    again = Node(1)
    again.watch = node.watch
    again.watch.begin(Round(4), 0)
    again.finds(0, "loss-spike", 120)
    (told,) = again.look(1.0)
    assert isinstance(told, FaultObserved)
    assert (told.round, told.rank) == (4, 1)


def test_a_repeated_step_is_reported_again() -> None:
    """A second finding of the same rank at the same step counts, because the step was computed again."""
    node = Node(2)
    node.finds(0, "norm", 7)
    assert len(node.look()) == 1
    node.finds(0, "norm", 7)
    node.finds(1, "norm", 7)
    (told,) = node.look(QUIET_S)
    assert isinstance(told, FaultObserved)
    assert told.values["count"] == 1.0
    assert told.message == "norm: 9 at step 7, where the threshold is 8"


def test_a_finding_is_reported_with_its_time() -> None:
    """With the time of the step, not of the check, so that causes precede effects."""
    node = Node(1)
    node.finds(0, "loss-nan", 7)
    assert [told.mono for told in node.told()] == [10**9 + 7]
    node.saves(0, 100)
    assert [told.mono for told in node.told()] == [None]


def test_each_checkpoint_is_reported_once() -> None:
    """By whichever rank, in order, with path, duration and number of kept checkpoints."""
    node = Node(2)
    node.saves(0, 100)
    node.saves(0, 200)
    node.saves(1, 200)
    told = node.look()
    assert told == [
        CheckpointCommitted(round=3, step=100, where="/c/100", seconds=1.0, kept=2),
        CheckpointCommitted(round=3, step=200, where="/c/200", seconds=1.0, kept=2),
    ]
    node.saves(1, 300)
    assert [fact.step for fact in node.look()] == [300]
    assert node.look() == []


def test_a_loss_that_stays_not_finite_is_reported_again() -> None:
    """At its tenth consecutive step, on any ranks; an interrupted sequence starts again."""
    node = Node(2)

    def told(first: int, last: int, since: int) -> list[FaultObserved]:
        for step in range(first, last + 1):
            for rank in (0, 1):
                node.finds(rank, "loss-nan", step, since, math.nan)
        return [fact for fact in node.look() if isinstance(fact, FaultObserved) and fact.kind == LASTING_NAN]

    assert told(20, 28, 20) == []
    assert told(40, 48, 40) == []
    [once] = told(49, 55, 40)
    assert (once.step, once.values["since"]) == (49, 40.0)
    assert told(56, 70, 40) == []
    node.watch.begin(Round(4), 8)
    node.found = [[], []]
    assert len(told(45, 54, 45)) == 1
