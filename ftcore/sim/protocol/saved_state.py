"""Registered state of a simulated script: ranks stage it after every step, and restore it when a round begins.

As in ``ftcore/worker/state``: a shard is complete before the next step is; the first rank of a replica group on a node
stages the tensors; the lowest rank of each group lets its shard be written to storage every few steps. All ranks load
the same state: what the master chose, or the newest older one if it cannot be used.
"""

import random
from collections.abc import Callable, Iterator

import attrs
import msgspec

from ftcore.events.checkpoint import Resume
from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.hosts import Process
from ftcore.sim.protocol.keepers import Moment, SimKeeper, SimKeeperClient, SimShard, SimStorage, Slot
from ftcore.sim.protocol.options import HYBRID, REPLICATED, SHARDED
from ftcore.sim.protocol.training import Gang, NodeWorkers

COPY = 0.7
"""Longest copy of the state, in steps; below the shortest step of ``JobTraining``."""

Saved = tuple[int, int, str]
"""Step, round and source of saved state."""


@attrs.frozen(kw_only=True)
class LoadedRound:
    """What a round has loaded.

    Args:
        round: the round.
        resume: what the master chose; None: nothing.
        found: what was loaded; None: nothing, the training begins anew.
        refused: what could not be used, with the reasons.
        failed: there is saved state, and none could be used: the workers end.
    """

    round: int
    resume: Resume | None
    found: Saved | None
    refused: tuple[str, ...]
    failed: bool

    @property
    def step(self) -> int:
        """The step of the state."""
        return self.found[0] if self.found is not None else 0


class SimSavedState:
    """Keepers, storage and staged state of a job.

    Args:
        clock: virtual time.
        chance: random generator.
        layout: one of ``options.LAYOUTS``.
        step_s: seconds of a step.
        every: steps between two saves to storage; 0: the job has no storage.
        trace: adds a line to the trace.
        loaded: called when a round has loaded its state.
    """

    def __init__(
        self,
        clock: Scheduler,
        chance: random.Random,
        *,
        layout: str,
        step_s: float,
        every: int,
        trace: Callable[[str], None],
        loaded: Callable[[Gang, LoadedRound], None],
    ) -> None:
        self._clock, self._chance, self._trace, self._loaded = clock, chance, trace, loaded
        self.layout, self.every, self._step_s = layout, every, step_s
        self.storage = SimStorage(chance)
        self._disturbed_at = -1
        self._keepers: dict[tuple[str, int, str], SimKeeper] = {}
        self._clients: dict[Process, SimKeeperClient] = {}

    def is_disturbed(self, since: int) -> bool:
        """Whether a keeper hangs, or was killed, or a shard was damaged since then."""
        return self._disturbed_at >= since or any(keeper.hung for keeper in self._keepers.values())

    # -- keepers

    def client(self, process: Process, ranks: Callable[[], NodeWorkers | None]) -> SimKeeperClient:
        """The client of an agent that begins; it takes over the keeper of its predecessor."""
        keeper = self._keepers.get(_place(process))
        if keeper is not None and not (keeper.alive and keeper.client is None and not keeper.hung):
            keeper = None
        client = self._clients[process] = SimKeeperClient(
            process, keeper, lambda round_: self._stage_now(ranks(), round_)
        )
        return client

    def died(self, process: Process) -> None:
        """An agent has ended."""
        self._clients[process].died()

    def _keeper(self, process: Process) -> SimKeeper | None:
        """The keeper of a node for its workers, which start one if necessary."""
        client = self._clients[process]
        if client.keeper is None and process.alive and not process.frozen and client.log:
            keeper = SimKeeper(self._clock, self._chance, self.storage, stores=self.every > 0)
            self._keepers[_place(process)] = keeper
            process.host.lost_with_it.append(keeper.kill)
            client.serve(keeper)
        return client.keeper

    # -- staging

    def stage(self, gang: Gang) -> None:
        """All ranks begin to stage the step that they have completed."""
        persist = self.every > 0 and gang.step % self.every == 0
        for _, ranks in sorted(gang.members.items()):
            for local_rank, shard in enumerate(self._shards(gang, ranks)):
                self._begin(ranks, local_rank, shard, persist=persist and self._writes(gang, shard))

    def _shards(self, gang: Gang, ranks: NodeWorkers) -> Iterator[SimShard]:
        size = sum(other.part.slots for other in gang.members.values())
        slots = ranks.part.slots
        groups = {REPLICATED: 1, SHARDED: size, HYBRID: slots}[self.layout]
        for local_rank in range(slots):
            rank = ranks.part.base_rank + local_rank
            yield SimShard(
                rank=rank,
                local_rank=local_rank,
                round=gang.round,
                step=gang.step,
                group=rank % groups,
                groups=groups,
                ranks=size,
                tensors=local_rank < groups,
            )

    def _writes(self, gang: Gang, shard: SimShard) -> bool:
        """Whether a rank is the lowest one of its replica group."""
        return shard.tensors and shard.rank < shard.groups

    def _begin(self, ranks: NodeWorkers, local_rank: int, shard: SimShard, *, persist: bool) -> None:
        keeper = self._keeper(ranks.process)
        if keeper is None or keeper.hung:
            return  # not staged; training goes on
        slot = keeper.begin(shard)
        sequence = slot.sequence

        def seal() -> None:
            if ranks.alive[local_rank] and keeper.alive and slot.sequence == sequence:
                self._seal(keeper, slot, persist=persist)

        self._clock.after(ns(self._chance.uniform(0.1, COPY) * self._step_s), seal)

    def _seal(self, keeper: SimKeeper, slot: Slot, *, persist: bool) -> None:
        slot.sealed = True
        sequence = slot.sequence
        if persist:
            keeper.request(lambda: keeper.persist(slot) if slot.sequence == sequence else None)

    def save(self, gang: Gang, *, in_memory: bool) -> None:
        """All ranks wait at a step boundary until their state is staged, and on its way to storage if it is to be."""
        for _, ranks in sorted(gang.members.items()):
            keeper = self._keeper(ranks.process)
            for local_rank, shard in enumerate(self._shards(gang, ranks)):
                slot = _slot_of(keeper, local_rank, shard.moment)
                if keeper is not None and slot is not None:
                    self._seal(keeper, slot, persist=not in_memory and self._writes(gang, shard))

    def _stage_now(self, ranks: NodeWorkers | None, round_: int) -> list[dict[str, object]]:
        """Living workers stage the step that they have completed, at any moment; not while it is being changed."""
        found: list[dict[str, object]] = []
        if ranks is None or ranks.round != round_:
            return found
        keeper = self._keeper(ranks.process)
        for local_rank, alive in enumerate(ranks.alive):
            rank = ranks.part.base_rank + local_rank
            slot = _slot_of(keeper, local_rank, (round_, ranks.step))
            if not alive or not ranks.steps:
                continue
            if slot is None or (not slot.sealed and self._chance.random() < 0.2):
                found.append({"rank": rank, "error": "an optimizer has stepped since the boundary"})
            else:
                slot.sealed = True
                found.append({"rank": rank, "step": ranks.step})
        return found

    # -- loading

    def load(self, gang: Gang, directed: int | None) -> None:
        """All ranks of a round load their state; it takes the time of the storage if that is read."""
        text = gang.members[0].resume
        resume = msgspec.json.decode(text, type=Resume) if text else None
        reads = resume is None or resume.source == "storage"
        delay = self.storage.duration_ns() if self.every and reads else ns(0.01)
        self._clock.after(delay, lambda: self._load(gang, resume, directed))

    def _load(self, gang: Gang, resume: Resume | None, directed: int | None) -> None:
        if gang.done or not all(all(ranks.alive) for ranks in gang.members.values()):
            return
        refused: list[str] = []
        found: Saved | None = None
        for saved in self._candidates(gang, resume, directed):
            why = self._problem(gang, saved)
            if not why:
                found = saved
                break
            refused.append(f"step {saved[0]} of round {saved[1]} ({saved[2]}): {why}")
        failed = found is None and bool(refused)
        done = LoadedRound(round=gang.round, resume=resume, found=found, refused=tuple(refused), failed=failed)
        self._trace(f"round {gang.round} loads {found}; refused: {refused}")
        self._loaded(gang, done)
        if not failed:
            self._report(gang, done)

    def _candidates(self, gang: Gang, resume: Resume | None, directed: int | None) -> list[Saved]:
        """What may be loaded, best first; see ``worker.state.load.StateLoader``."""
        chosen = (resume.step, resume.round, resume.source) if resume is not None else None
        limit, found = directed, [] if chosen is None else [chosen]
        keeper = self._keeper(gang.members[0].process)
        if resume is not None and keeper is not None and not keeper.hung:
            limit = resume.step - 1
            held = {shard.moment for _, shard in keeper.sealed()}
            found += [(step, round_, "memory") for round_, step in sorted(held, key=lambda each: each[::-1])]
        if self.every and not self.storage.problem(writes=False):
            found += [(step, round_, "storage") for round_, step in sorted(self.storage.manifests, reverse=True)]
        if limit is not None:
            found = [each for each in found if each[0] <= limit or each == chosen]
        if chosen is None:
            return found
        return found[:1] + sorted(found[1:], key=lambda each: (each[0], each[2] == "memory"), reverse=True)

    def _problem(self, gang: Gang, saved: Saved) -> str:
        """Why the ranks of a round cannot load saved state; empty: they can."""
        step, round_, source = saved
        if source == "storage":
            return self._problem_on_storage((round_, step))
        keepers = [self._keeper(ranks.process) for _, ranks in sorted(gang.members.items())]
        reachable = [keeper for keeper in keepers if keeper is not None and not keeper.hung]
        held = [pair for keeper in reachable for pair in keeper.sealed() if pair[1].moment == (round_, step)]
        if not held:
            return "no shard is held"
        if any(slot.damaged for slot, shard in held if shard.tensors):
            return "damaged"
        whole = _groups(held) == held[0][1].groups
        return "" if whole else "not all replica groups are held"

    def _problem_on_storage(self, moment: Moment) -> str:
        if problem := self.storage.problem(writes=False):
            return problem
        if moment not in self.storage.manifests:
            return "no manifest"
        files = self.storage.shards[moment]
        return "damaged" if any(files[name].damaged for name in self.storage.manifests[moment]) else ""

    def _report(self, gang: Gang, done: LoadedRound) -> None:
        for _, ranks in sorted(gang.members.items()):
            keeper = self._keeper(ranks.process)
            for local_rank in range(ranks.part.slots):
                message = {
                    "round": gang.round,
                    "local_rank": local_rank,
                    "local_ranks": ranks.part.slots,
                    "step": done.step,
                    "source": done.found[2] if done.found is not None else "",
                    "seconds": 0.1,
                    "refused": done.refused,
                }
                if keeper is not None and done.found is not None:
                    keeper.request(lambda keeper=keeper: keeper.drop(done.step, gang.round))  # type: ignore[misc]
                if keeper is not None:
                    keeper.request(lambda keeper=keeper, message=message: keeper.tell("loaded", message))  # type: ignore[misc]

    # -- faults

    def repair(self) -> None:
        """Repair storage and keepers."""
        self.storage.slow, self.storage.full, self.storage.gone = 1.0, False, False
        for keeper in self._keepers.values():
            keeper.resume()

    def faults(self) -> dict[str, Callable[[], str]]:
        """The faults by name; each returns its target."""
        return {
            "keeper_kill": lambda: self._on_keeper(SimKeeper.kill, "killed"),
            "keeper_hang": lambda: self._on_keeper(self._hang, "hangs or goes on"),
            "storage_slow": self._slow,
            "storage_full": self._full,
            "storage_gone": self._gone,
            "shard_damaged": self._damage,
        }

    def _on_keeper(self, act: Callable[[SimKeeper], None], what: str) -> str:
        living = [(place, keeper) for place, keeper in self._keepers.items() if keeper.alive]
        if not living:
            return ""
        place, keeper = self._chance.choice(living)
        self._disturbed_at = self._clock.now
        act(keeper)
        return f"keeper of {place[2]} on {place[0]} {what}"

    def _hang(self, keeper: SimKeeper) -> None:
        if keeper.hung:
            keeper.resume()
        else:
            keeper.hung = True

    def _slow(self) -> str:
        self.storage.slow = self._chance.choice((1.0, 30.0, 300.0))
        return f"{self.storage.slow:g} times slower"

    def _full(self) -> str:
        self.storage.full = not self.storage.full
        return "full" if self.storage.full else "has room"

    def _gone(self) -> str:
        self.storage.gone = not self.storage.gone
        return "unavailable" if self.storage.gone else "available"

    def _damage(self) -> str:
        """Damage a shard in memory, or the newest complete checkpoint."""
        self._disturbed_at = self._clock.now
        if self.storage.manifests and self._chance.random() < 0.5:
            newest = max(self.storage.manifests)
            self.storage.shards[newest][self.storage.manifests[newest][0]].damaged = True
            return f"step {newest[1]} of round {newest[0]} on storage"
        sealed = [pair for keeper in self._keepers.values() if keeper.alive for pair in keeper.sealed()]
        if not sealed:
            return ""
        slot, shard = self._chance.choice(sealed)
        slot.damaged = True
        return f"step {shard.step} of rank {shard.rank} in memory"


def _place(process: Process) -> tuple[str, int, str]:
    return process.host.name, process.host.boots, process.name


def _slot_of(keeper: SimKeeper | None, local_rank: int, moment: Moment) -> Slot | None:
    """The slot in which a rank stages, or has staged, a step."""
    if keeper is None:
        return None
    found = (slot for slot in keeper.slots.get(local_rank, ()) if slot.shard is not None)
    return next((slot for slot in found if slot.shard is not None and slot.shard.moment == moment), None)


def _groups(held: list[tuple[Slot, SimShard]]) -> int:
    return len({shard.group for _, shard in held if shard.tensors})
