"""Checkers of registered state: what rounds resume from, and what a fault costs. They do their own bookkeeping."""

from ftcore.events.checkpoint import CheckpointCommitted, HeldShard, MemoryHeld, Resume, StateLoaded
from ftcore.events.envelope import Event
from ftcore.events.job import JobRolledBack, JobSubmitted
from ftcore.events.node import NodeJoined
from ftcore.events.world import Member, WorldFormed, WorldMembers
from ftcore.sim.protocol.checker import Checker
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.keepers import KEPT, Moment
from ftcore.sim.protocol.saved_state import LoadedRound, Saved
from ftcore.sim.protocol.training import Gang

KILLED = ("killed of round", "error of round")
"""Harms that end workers alone."""


class ResumesFromWhatIsHeld(Checker):
    """12. A round resumes from state that is not whole, or left by a rollback, or damaged, or older than necessary."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._held: dict[str, tuple[str, tuple[HeldShard, ...]]] = {}
        self._committed: list[Moment] = []
        self._kept: list[Moment] = []
        self._rollbacks: list[Moment] = []
        self._members: tuple[Member, ...] = ()
        self._round = 0
        self._chosen: dict[int, Resume] = {}
        self._tried: dict[Saved, int] = {}
        self._damaged: dict[Saved, None] = {}

    def appended(self, event: Event) -> None:
        """The state that the log names for a world is held by its members, or on storage."""
        data = event.data
        if isinstance(data, MemoryHeld) or (isinstance(data, NodeJoined) and data.shards):
            self._held[data.node] = (data.incarnation, data.shards)
        elif isinstance(data, CheckpointCommitted) and data.own:
            self._committed.append((data.round, data.step))
            self._keep((data.round, data.step))
        elif isinstance(data, JobRolledBack):
            self._rollbacks.append((self._round + 1, data.step))
        elif isinstance(data, StateLoaded) and data.refused and data.round in self._chosen:
            self._damaged[_key(self._chosen[data.round])] = None
        elif isinstance(data, JobSubmitted):
            self._tried, self._damaged = {}, {}
        elif isinstance(data, WorldMembers):
            self._members = data.members
        elif isinstance(data, WorldFormed):
            self._round = data.round
            if self.sim.saved is not None:
                self._formed(data)

    def _keep(self, new: Moment) -> None:
        """Count a checkpoint as kept, as retention does: a later round's replaces those of its step or a later one."""
        live = [each for each in (*self._kept, new) if not self._is_left(each)]
        live = [each for each in live if not any(other[0] > each[0] and other[1] <= each[1] for other in live)]
        self._kept = sorted(live, key=lambda each: each[::-1])[-KEPT:]

    def _formed(self, data: WorldFormed) -> None:
        resume = data.resume
        if resume is not None:
            self._check(data.round, resume)
        offered = (each for each in self._kept if not self._is_left(each) and self._is_free(*each))
        floor = max((step for _, step in offered), default=0)
        # A rank that was killed before it staged its own values of the last step costs that step.
        least = floor - 1 if resume is not None and resume.source == "memory" else floor
        if (resume.step if resume is not None else 0) < least:
            self.fail(f"round {data.round} resumes from {resume}, although step {floor} is committed")
        if resume is not None:
            self._chosen[data.round] = resume
            self._tried[_key(resume)] = self._tried.get(_key(resume), 0) + 1

    def _is_free(self, round_: int, step: int) -> bool:
        key = (step, round_, "storage")
        return key not in self._damaged and self._tried.get(key, 0) < 2

    def _is_left(self, moment: Moment) -> bool:
        return any(moment[0] < first and moment[1] > step for first, step in self._rollbacks)

    def _check(self, round_: int, resume: Resume) -> None:
        moment = (resume.round, resume.step)
        if self._is_left(moment):
            self.fail(f"round {round_} resumes from {resume}, which a rollback left: {self._rollbacks}")
        if _key(resume) in self._damaged:
            self.fail(f"round {round_} resumes from {resume}, which ranks have refused before")
        if resume.source == "storage":
            if moment not in self._committed:
                self.fail(f"round {round_} resumes from {resume}, which is not committed: {self._committed}")
            return
        shards: dict[str, list[HeldShard]] = {}
        for member in self._members:
            life, held = self._held.get(member.node, ("", ()))
            found = [each for each in held if (each.round, each.step) == moment] if life == member.incarnation else []
            shards[member.node] = found
        groups = {shard.group for found in shards.values() for shard in found if shard.tensors}
        first = next((shard for found in shards.values() for shard in found), None)
        if first is None or len(groups) < first.groups:
            self.fail(f"round {round_} resumes from {resume}; its members hold the replica groups {sorted(groups)}")

    def loaded(self, gang: Gang, done: LoadedRound) -> None:
        """The state that ranks really load is of the current lineage."""
        if done.found is None:
            return
        step, round_, _ = done.found
        if self._is_left((round_, step)):
            self.fail(f"round {gang.round} loads {done.found}, which a rollback left: {self._rollbacks}")


class AKilledWorkerCostsAStep(Checker):
    """13. More than one step is lost although workers alone were killed."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._before: tuple[Gang, int] | None = None
        self._rolled_back = -1

    def appended(self, event: Event) -> None:
        """A rollback goes back on purpose."""
        if isinstance(event.data, JobRolledBack):
            self._rolled_back = self.sim.clock.now

    def loaded(self, gang: Gang, done: LoadedRound) -> None:
        """The same nodes go on from the last step that they completed, or the one before."""
        before, self._before = self._before, (gang, self.sim.clock.now)
        if before is None or self.sim.saved is None:
            return
        earlier, since = before
        same = earlier.round + 1 == gang.round and _places(earlier) == _places(gang)
        disturbed = self._rolled_back >= since or self.sim.saved.is_disturbed(since)
        others = [what for at, what in self.sim.conditions.harms if at >= since and not what.startswith(KILLED)]
        if not same or disturbed or others or not earlier.members[0].steps:
            return
        if done.step < earlier.step - 1:
            self.fail(f"round {gang.round} begins behind step {done.step}; round {earlier.round} was at {earlier.step}")


def _key(resume: Resume) -> Saved:
    return resume.step, resume.round, resume.source


def _places(gang: Gang) -> list[tuple[str, int, str, int]]:
    return [
        (ranks.process.host.name, ranks.process.host.boots, ranks.process.name, ranks.part.base_rank)
        for _, ranks in sorted(gang.members.items())
    ]
