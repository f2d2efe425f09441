"""Makes the event log: tells the story's facts to the production engine, which decides on them as in a running job.

The launcher that really ran the job stands in the chain as a policy of another package, and what it did (start the
workers again, or end the job) is its recorded answer. So incidents and their classes are ftcore's, and the plans are
those that were carried out; ``ftctl whatif`` compares them with another chain.

Facts that the engine requires but no log has (a node joined, a store was opened) get the time and source of what shows
them, the first output of the attempt. Time limits of ftcore did not apply to the job: only the timers that wait for
further evidence and for the outcome of a plan expire. Pure.
"""

import hashlib
import math
import re
from collections.abc import Callable
from typing import Any

import attrs

from ftcore.commands import AskPolicy, OpenStore, ReleaseNode, StartWorkers, StopWorkers
from ftcore.engine.decide import turn
from ftcore.engine.turn import MASTER, sequence
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import At, Event, EventId, Fact
from ftcore.events.imported import FILES_MAX, IMPORTER, GapFound, LogImported, SourceCited
from ftcore.events.job import JobProgressed, JobSpec, JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeJoined, NodeLeft, NodeLost
from ftcore.events.policy import ChainEntry, PolicyAnswered, PolicyLoaded
from ftcore.events.worker import (
    EVIDENCE_BYTES_MAX,
    FaultObserved,
    LogMatched,
    WorkerError,
    WorkerFailed,
    WorkersFinished,
    WorkersStarted,
    WorkersStepped,
    WorkersStopped,
)
from ftcore.events.world import StoreOpened
from ftcore.ids import SECOND, Nanoseconds, Term
from ftcore.importing.model import Act, Collected, Sighting, SourceTime
from ftcore.importing.story import Story, StoryAttempt, StoryRun
from ftcore.states import timers
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended
from ftcore.states.revisions import NEWEST
from ftcore.timing import Timing
from ftcore.version import __version__

TERM = Term(1)
LINE_BYTES = 512
PROGRESS_S = 10
_WAITS = (timers.DiagnosisTimer, timers.BackoffTimer, timers.SettleTimer)
"""Kinds of timers that expire; all others are time limits."""
_RANK = re.compile(r"^\[rank\d{1,7}\]: ?", re.MULTILINE)
_RESERVED = (MASTER, IMPORTER)

Sink = Callable[[list[Event]], object]


class Composer:
    """Composes one log; call ``compose`` once.

    Args:
        story: what happened.
        collected: what was read.
        shifts: seconds that were added to the clocks of hosts.
        sink: takes every group of events.
    """

    def __init__(self, story: Story, collected: Collected, shifts: dict[str, float], sink: Sink) -> None:
        self.state = JobState()
        self._story, self._collected, self._shifts, self._sink = story, collected, shifts, sink
        self._numbers: dict[tuple[str, str], int] = {}
        self._cited: tuple[Any, ...] = ()
        self._cite = 0
        self._now = 0
        self._names = {host: f"host-{host}" if host in _RESERVED else host for host in story.hosts}
        self._life = 0
        self._hosts: dict[str, int] = {}
        self._silent: list[str] = []
        self._gaps = list(story.gaps)
        self._stepped: set[str] = set()
        self._progress: dict[str, int] = {}
        self._sampled = 0
        self._newest: Sighting | None = None
        self._last_step: dict[tuple[str, int | None], int] = {}

    def compose(self) -> JobState:
        """Tell the whole story to the engine; returns the state at its end."""
        first = self._story.runs[0]
        self._now = min(_ns(first.attempts[0].begin), _ns(first.submitted) if first.submitted else 1 << 62)
        self._own(MasterElected(host=IMPORTER, pid=0, address="", version=__version__, decides=NEWEST))
        self._own(self._imported(), source=IMPORTER)
        for number, run in enumerate(self._story.runs):
            self._run(run, last=number == len(self._story.runs) - 1)
        self._gaps_until(1 << 62)
        return self.state

    # -- facts

    def _imported(self) -> LogImported:
        read = [file.name for file in self._collected.files if file.understood]
        return LogImported(
            source=self._collected.source,
            files=tuple(read[:FILES_MAX]),
            file_count=len(self._collected.files),
            lines=sum(file.lines for file in self._collected.files),
            notes=tuple(self._collected.notes),
        )

    def _own(self, data: Any, *, source: str = MASTER, cause: int | None = None, at: At | None = None) -> Event:
        """Take one turn."""
        if source == MASTER:
            identity = EventId(MASTER, "", 0)
        else:
            life = str(max(1, self._life))
            number = self._numbers[source, life] = self._numbers.get((source, life), 0) + 1
            identity = EventId(source, life, number)
        fact = Fact(id=identity, data=data, cause=cause, at=at)  # type: ignore[arg-type]
        event = sequence(self.state, fact, now=Nanoseconds(self._now), term=TERM)
        self._sink(turn(self.state, event))
        return event

    def _pass_to(self, ns: int) -> None:
        """Let time pass: gaps are told, and timers that wait expire."""
        self._gaps_until(ns)
        while (coming := self._next_wait(ns)) is not None:
            key, due = coming
            self._now = max(self._now, due)
            self._own(DeadlineExpired(key=key, due=due))
        self._now = max(self._now, ns)

    def _next_wait(self, ns: int) -> tuple[str, int] | None:
        running = timers.all_due(self.state)
        waits = [(due, key) for key, due in running.items() if isinstance(timers.parse(key), _WAITS)]
        due, key = min(waits, default=(1 << 62, ""))
        return (key, due) if due <= ns else None

    def _gaps_until(self, ns: int) -> None:
        while self._gaps and (self._gaps[0][1].when.ns or 0) <= ns:
            begin, end = self._gaps.pop(0)
            assert begin.when.ns is not None and end.when.ns is not None
            self._now = max(self._now, end.when.ns)
            self._own(GapFound(begin=begin.when.ns, end=end.when.ns, place=begin.place), source=IMPORTER)

    def _cite_of(self, one: Sighting, basis: str = "") -> int:
        """The ``source.cited`` of a sighting."""
        key = (one.place, one.when, basis)
        if key != self._cited:
            cited = SourceCited(
                place=one.place,
                basis=basis or one.when.basis,
                error_s=None if basis else one.when.error_s,
                clock=one.host,
                shift_s=one.when.shift_s,
                text=_cut(one.text.partition("\n")[0], LINE_BYTES),
            )
            self._cite = self._own(cited, source=IMPORTER).seq
            self._cited = key
        return self._cite

    def _tell(self, data: Any, one: Sighting, *, basis: str = "", node: str = "") -> None:
        """Tell a fact at the time of a sighting, with its source."""
        self._pass_to(_ns(one))
        cause = self._cite_of(one, basis)
        wall = _ns(one) - round(one.when.shift_s * SECOND)
        at = At(wall=wall, mono=0, boot="") if node and not basis and one.when.basis in ("line", "field") else None
        self._own(data, source=node or MASTER, cause=cause, at=at)

    # -- runs

    def _run(self, run: StoryRun, *, last: bool) -> None:
        first = run.submitted or run.attempts[0].begin
        begin = attrs.evolve(first, when=attrs.evolve(first.when, ns=max(self._now, _ns(first))))
        self._life += 1
        self._hosts = run.hosts
        self._submit(run, begin)
        for index, attempt in enumerate(run.attempts):
            following = run.attempts[index + 1] if index + 1 < len(run.attempts) else None
            self._attempt(attempt, run, following)
            if has_ended(self.state):
                break
        if run.ended is not None and not has_ended(self.state):
            self._end(run, run.ended)
        if not last and not has_ended(self.state):
            sign = run.ended or run.attempts[-1].begin
            self._close(sign, "a later submission of the job shows that this one had ended")

    def _submit(self, run: StoryRun, begin: Sighting) -> None:
        hosts = self._hosts
        argv = self._collected.argv or ("unknown",)
        spec = JobSpec(argv=argv, nodes_min=len(hosts), nodes_max=len(hosts), timing=Timing())
        submitted = JobSubmitted(
            job=self._collected.job or "imported",
            run=self.state.run + 1,
            spec=spec,
            digest=hashlib.sha256(repr(spec).encode()).hexdigest(),
            command=argv,
            versions={},
            user="",
        )
        self._tell(submitted, begin)
        launcher = self._collected.launcher
        entry = ChainEntry(policy=launcher, options={}, external=launcher, kinds=("fault",))
        self._own(PolicyLoaded(source=launcher, text="", digest="", chain=(entry,)))

    def _attempt(self, attempt: StoryAttempt, run: StoryRun, following: StoryAttempt | None) -> None:
        self._stepped.clear()
        self._progress.clear()
        self._last_step.clear()
        self._start(attempt)
        speaking = {one.host for one in attempt.items if one.act is Act.STEPPED}
        self._silent = [host for host in self._hosts if host not in speaking]
        for item in attempt.items:
            if has_ended(self.state):
                return
            self._item(item)
        self._sample()
        if attempt.finished is not None and not attempt.troubles:
            self._finish(attempt.finished)
        elif following is not None:
            self._restart(attempt, following)
        elif attempt.troubles and run.ended is not None:
            self._close(_latest(run.ended, attempt), run.ended.text)

    def _start(self, attempt: StoryAttempt) -> None:
        """Nodes join that are not there, the store opens, the workers start."""
        begin = attempt.begin
        for ordinal, (host, slots) in enumerate(self._hosts.items()):
            name = self._names[host]
            node = self.state.membership.nodes.get(name)
            if node is None or not node.alive:
                joined = NodeJoined(
                    node=name,
                    incarnation=str(self._life),
                    slots=slots,
                    host=host,
                    pid=0,
                    address=host,
                    version="",
                    ordinal=ordinal,
                )
                self._tell(joined, begin, basis="bound", node=name)
        self._pass_to(_ns(begin))
        for _ in range(4):  # the store, the start, and what stands in their way
            self._answer_stops(begin)
            self._answer_starts(attempt)

    def _open(self, kind: type[Any]) -> list[Any]:
        return [order for order in self.state.orders.open.values() if isinstance(order.command, kind)]

    def _answer_starts(self, attempt: StoryAttempt) -> None:
        begin = attempt.begin
        for order in self._open(OpenStore):
            for name, life in list(order.waiting.items()):
                opened = StoreOpened(
                    node=name, incarnation=life, round=order.command.round, host=name, port=0, effect=order.effect
                )
                self._tell(opened, begin, basis="bound", node=name)
        for order in self._open(StartWorkers):
            for name, life in list(order.waiting.items()):
                host = next(host for host, node in self._names.items() if node == name)
                slots = self._hosts[host]
                pids = tuple(attempt.pids.get((host, local), 0) for local in range(slots))
                started = WorkersStarted(
                    node=name, incarnation=life, round=order.command.round, pids=pids, how=self._collected.launcher
                )
                self._tell(started, begin, basis="bound", node=name)

    def _answer_stops(self, sign: Sighting, codes: dict[str, tuple[int | None, ...]] | None = None) -> None:
        for order in self._open(StopWorkers):
            for name, life in list(order.waiting.items()):
                node = self.state.membership.nodes.get(name)
                slots = node.slots if node is not None else 1
                stopped = WorkersStopped(
                    node=name,
                    incarnation=life,
                    round=order.command.round,
                    exitcodes=(codes or {}).get(name, (None,) * slots),
                    effect=order.effect,
                )
                self._tell(stopped, sign, basis="" if sign.act is Act.STOPPED else "bound", node=name)

    # -- what happened in an attempt

    def _node(self, host: str) -> tuple[str, str, int] | None:
        """Name, incarnation and round of a host's node; None: it is not there."""
        name = self._names[host if host in self._hosts else next(iter(self._hosts))]
        node = self.state.membership.nodes.get(name)
        world = self.state.rounds.world
        if node is None or not node.alive or world is None:
            return None
        return name, node.incarnation, world.round

    def _item(self, one: Sighting) -> None:
        place = self._node(one.host)
        if place is None:
            return
        name, life, round_ = place
        where: dict[str, Any] = {"node": name, "incarnation": life}
        rank = one.rank if one.rank is not None else -1
        if one.act is Act.STEPPED and one.step is not None:
            self._step(one, name, life, round_)
            return
        if one.act is not Act.MATCHED:
            self._sample()
        step = self._last_step.get((name, one.rank), self._progress.get(name))
        known: dict[str, Any] = {"step": step, "absolute": step is not None}
        if one.act is Act.MATCHED and one.rank is None:
            return  # a launcher's own line
        if one.act is Act.MATCHED:
            line = _cut(one.text, LINE_BYTES)
            matched = LogMatched(**where, round=round_, rank=rank, rule=one.rule, cls=one.cls, line=line)
            self._tell(matched, one, node=name)
        elif one.act is Act.LOST:
            self._tell(NodeLost(node=name, incarnation=life, reason=_cut(one.text, LINE_BYTES), **known), one)
        elif one.act is Act.FAILED and one.rank is not None and one.code is not None:
            self._tell(self._failed(one, where, round_, known), one, node=name)
        else:
            text = _own_words(one.text if one.act is Act.FAILED and one.text else one.tail or one.text)
            observed = FaultObserved(
                **where,
                round=round_,
                source=one.source,
                kind=one.rule if one.act is Act.OBSERVED else "",
                rank=rank,
                message=_cut(text, EVIDENCE_BYTES_MAX, end=one.source == "log"),
                **known,
            )
            self._tell(observed, one, node=name)

    def _failed(self, one: Sighting, where: dict[str, Any], round_: int, known: dict[str, Any]) -> WorkerFailed:
        error = None
        if one.text:
            stack = _cut(one.callstack, EVIDENCE_BYTES_MAX, end=True)
            error = WorkerError(message=_cut(_own_words(one.text), EVIDENCE_BYTES_MAX), py_callstack=stack)
        assert one.rank is not None and one.code is not None
        return WorkerFailed(
            **where,
            round=round_,
            rank=one.rank,
            local_rank=one.local_rank or 0,
            pid=one.pid,
            exitcode=one.code,
            error=error,
            tail=_cut(_own_words(one.tail), EVIDENCE_BYTES_MAX, end=True),
            **known,
        )

    def _step(self, one: Sighting, name: str, life: str, round_: int) -> None:
        assert one.step is not None
        self._last_step[name, one.rank] = one.step
        self._progress[name] = one.step
        self._newest = one
        if name not in self._stepped:
            self._stepped.add(name)
            stepped = WorkersStepped(node=name, incarnation=life, round=round_, step=one.step, absolute=True)
            self._tell(stepped, one, node=name)
            self._sampled = _ns(one)
            self._silent_step(one, round_)
        elif _ns(one) - self._sampled >= PROGRESS_S * SECOND:
            self._report(one)

    def _silent_step(self, one: Sighting, round_: int) -> None:
        """Nodes that report no steps complete them with those that do: the ranks of a job train together."""
        for host in self._silent:
            place = self._node(host)
            if place is not None and place[0] not in self._stepped:
                name, life, _ = place
                self._stepped.add(name)
                assert one.step is not None
                stepped = WorkersStepped(node=name, incarnation=life, round=round_, step=one.step, absolute=True)
                self._tell(stepped, one, basis="bound", node=name)

    def _sample(self) -> None:
        """Report the newest step before something else happens."""
        newest = min(self._progress.values(), default=None)
        if self._newest is not None and newest is not None and newest > (self.state.training.step or 0):
            self._report(self._newest)

    def _report(self, one: Sighting) -> None:
        world = self.state.rounds.world
        if world is None or has_ended(self.state):
            return
        finite = one.loss if one.loss is not None and math.isfinite(one.loss) else None
        progressed = JobProgressed(round=world.round, step=min(self._progress.values()), loss=finite)
        self._tell(progressed, one)
        self._sampled = _ns(one)

    # -- what the launcher did

    def _restart(self, attempt: StoryAttempt, following: StoryAttempt) -> None:
        """The launcher stopped the workers and started them again."""
        sign = attempt.stopped or following.begin
        if self.state.incident is None:
            self._unexplained(attempt, following)
        reason = f"{self._collected.launcher} started all workers again (attempt {following.number})"
        self._answer("restart", sign, reason)
        self._answer_stops(sign)

    def _unexplained(self, attempt: StoryAttempt, following: StoryAttempt) -> None:
        """A restart without any evidence of its reason is an incident as well."""
        name_of = self._node(next(iter(self._hosts)))
        if name_of is None:
            return
        name, life, round_ = name_of
        message = f"attempt {following.number} began; no file shows why attempt {attempt.number} ended"
        observed = FaultObserved(
            node=name, incarnation=life, round=round_, source="log", kind="", rank=-1, message=message
        )
        self._tell(observed, attempt.stopped or following.begin, basis="bound", node=name)

    def _answer(self, plan: str, sign: Sighting, reason: str, *, outcome: str = "", code: int = 0) -> None:
        while (order := next(iter(self._open(AskPolicy)), None)) is not None:
            answered = PolicyAnswered(
                effect=order.effect,
                policy=order.command.policy,
                verdict="take",
                reason=reason,
                plan=plan,
                outcome=outcome,
                exit_code=code,
            )
            self._tell(answered, sign, basis="" if sign.act in (Act.STOPPED, Act.ENDED) else "bound")

    def _finish(self, sign: Sighting) -> None:
        world = self.state.rounds.world
        if world is None:
            return
        for member in world.members:
            finished = WorkersFinished(node=member.node, incarnation=member.incarnation, round=world.round)
            self._tell(finished, sign, node=member.node)
        self._release(sign)

    def _end(self, run: StoryRun, ended: Sighting) -> None:
        """The files show the end of the run, and no failure in its last attempt."""
        if ended.outcome == "succeeded":
            self._finish(ended)
        else:
            self._close(ended, ended.text)

    def _close(self, sign: Sighting, why: str) -> None:
        """The run ended, and not because all workers had finished."""
        outcome = sign.outcome if sign.outcome in ("failed", "stopped") else "failed"
        code = 5 if outcome == "stopped" else 1
        if self.state.incident is None and (place := self._node(next(iter(self._hosts)))) is not None:
            name, life, round_ = place
            message = _cut(why or "the job ended; no file shows why", LINE_BYTES)
            source = "platform" if sign.source in ("slurm", "platform") else "log"
            observed = FaultObserved(
                node=name, incarnation=life, round=round_, source=source, kind="", rank=-1, message=message
            )
            self._tell(observed, sign, node=name)
        reason = _cut(f"{self._collected.launcher} ended the job: {why.strip() or 'no reason is known'}", LINE_BYTES)
        self._answer("end", sign, " ".join(reason.split()), outcome=outcome, code=code)
        self._answer_stops(sign)
        self._release(sign)

    def _release(self, sign: Sighting) -> None:
        for order in self._open(ReleaseNode):
            for name, life in list(order.waiting.items()):
                left = NodeLeft(node=name, incarnation=life, reason=order.command.outcome)
                self._tell(left, sign, basis="bound", node=name)


def _ns(one: Sighting) -> int:
    assert one.when.ns is not None
    return one.when.ns


def _latest(ended: Sighting, attempt: StoryAttempt) -> Sighting:
    """The end, but not before the attempt's last item."""
    last = max((_ns(one) for one in attempt.items), default=0)
    if _ns(ended) >= last:
        return ended
    return attrs.evolve(ended, when=SourceTime(ns=last, basis="bound"))


def _own_words(text: str) -> str:
    """What a rank printed, without torch's prefix of each line, and with the last line of a traceback first."""
    plain = _RANK.sub("", text)
    lines = plain.splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "")
    if lines and lines[0].startswith("Traceback (") and not last[:1].isspace():
        return f"{last}\n{plain}"
    return plain


def _cut(text: str, size: int, *, end: bool = False) -> str:
    """The start or the end of a text, at most so many bytes."""
    data = text.encode("utf-8", "replace")
    if len(data) <= size:
        return data.decode("utf-8", "replace")
    return (data[-size:] if end else data[:size]).decode("utf-8", "ignore")
