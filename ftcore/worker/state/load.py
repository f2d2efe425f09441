"""Restores the registered state, on all ranks from the same step.

The candidates are what the master chose, then older complete checkpoints, without those that a rollback left behind.
For each, ranks agree before and after:

1. The ranks that can, open shards: in the memory of their node; of a checkpoint on storage, the first rank of each
   replica group alone.
2. In memory, ranks of groups without such a rank receive shards from other nodes (``fetch``).
3. If each group has a rank whose shards cover its state, these ranks fill their tensors, verified.
4. They send them to the other ranks of their group (``spread``), and the Python values that those lack.

Only when all ranks have succeeded are Python values set. If one fails, all continue with the next candidate together.

Python values: with the same number of ranks, a rank gets its own; else rank r gets those of rank r % N of the N ranks
that saved, and generators stay as they are, because equal ones would make ranks draw equal numbers.

House rules: state that was overwritten by a candidate that failed is never trained with: without another candidate,
``load`` raises. Every candidate that is not used is one line on standard error of rank 0.
"""

import contextlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ftcore.checkpoint.directory import checkpoints
from ftcore.checkpoint.layout import ShardIndex, missing
from ftcore.checkpoint.retention import newest_first
from ftcore.checkpoint.storage import Storage
from ftcore.errors import CheckpointError
from ftcore.shm.staging import StagingSlot
from ftcore.worker._keeper import KeeperClient
from ftcore.worker.state import fetch, replicas, rng, spread
from ftcore.worker.state.collect import StateCollection, decoded
from ftcore.worker.state.filling import fill, pieces_of
from ftcore.worker.state.parts import LoadTarget, StoredShape
from ftcore.worker.state.shards import HeldShards, SavedShards, SavedStep, open_stored, shapes_of

MEMORY = "memory"
STORAGE = "storage"


class LoadedState(NamedTuple):
    """What ``load`` did on this rank.

    Args:
        step: the number of the last completed step; 0: nothing was restored.
        source: ``memory``, ``storage``, ``replica`` (received from another rank), or empty: nothing was restored.
        seconds: how long it took.
        refused: candidates that could not be used, as ``PLACE: reason``.
    """

    step: int
    source: str
    seconds: float
    refused: tuple[str, ...]


class ResumeChoice(NamedTuple):
    """What the master says about the state to load.

    Args:
        saved: what it chose; None: it knows of nothing.
        checkpoints: where checkpoints are; empty: nowhere.
        limit: newer steps are not used; None: no limit.
        rollbacks: the first round after each rollback, and the step that it went back to: what earlier rounds saved of
            later steps is not used.
    """

    saved: SavedStep | None
    checkpoints: str
    limit: int | None = None
    rollbacks: tuple[tuple[int, int], ...] = ()

    def is_abandoned(self, step: int, round_: int) -> bool:
        """Whether a rollback left behind what this round saved of this step."""
        return any(round_ < back_round and step > back_step for back_round, back_step in self.rollbacks)


class _Opened(NamedTuple):
    """A candidate as this rank can read it.

    Args:
        shards: the shards.
        shapes: the tensors of the checkpoint.
        values: the Python values for this rank.
        own: whether they are its own, so that generators are restored.
        targets: the memory to fill.
    """

    shards: SavedShards
    shapes: dict[str, StoredShape]
    values: dict[str, Any]
    own: bool
    targets: list[LoadTarget]


class _Transfer(NamedTuple):
    """What a rank sends or has received; see ``_Opened``.

    Args:
        kept: what a rank that receives still has of its own; None: nothing.
    """

    values: dict[str, Any]
    own: bool
    targets: list[LoadTarget]
    kept: HeldShards | None = None


class StateLoader:
    """Restores the registered state.

    Args:
        collection: the registered state.
        keeper: the connection to the node's keeper; None: there is none.
        choice: what the master says.
    """

    def __init__(self, collection: StateCollection, keeper: KeeperClient | None, choice: ResumeChoice) -> None:
        self._collection, self._keeper, self._choice = collection, keeper, choice
        self._rank, self._size = replicas.place()
        self._seat = self._rank if replicas.is_connected() else 0
        """This rank's place among those that load together: without a process group, it loads alone."""
        self._digests: list[str] = []

    def load(self) -> LoadedState:
        """Restore the newest state that all ranks can; all ranks call it.

        Raises:
            CheckpointError: there is saved state, and none of it can be used.
        """
        began = time.monotonic()
        collected = self._collection.collect()
        shared = spread.gather((collected.digest, self._candidates()))
        self._digests = [digest for digest, _ in shared]
        candidates = shared[0][1]
        refused: list[str] = []
        for saved in candidates:
            why, source = self._try(saved)
            if not why:
                self._collection.collected = None
                return LoadedState(saved.step, source, time.monotonic() - began, tuple(refused))
            refused.append(f"{saved}: {why}")
            self._say(f"{saved} cannot be loaded: {why}")
        if refused:
            raise CheckpointError(
                f"no saved state can be loaded ({len(refused)} tried); the first one: {refused[0]}. Training does not "
                "start, so that it does not begin again from step 1. To begin again, use another checkpoint path"
            )
        return LoadedState(0, "", time.monotonic() - began, ())

    def _say(self, text: str) -> None:
        if self._seat == 0:
            print(f"ftcore: {text}", file=sys.stderr, flush=True)

    # -- candidates

    def _candidates(self) -> list[SavedStep]:
        """What may be loaded, best first; rank 0 decides. Errors of the storage leave it out."""
        if self._seat:
            return []
        chosen, where, limit, _ = self._choice
        found = self._stored() if where else []
        if chosen is None:
            return [each for each in found if limit is None or each.step <= limit]
        found += self._held()
        older = [each for each in found if each.step < chosen.step]
        return [chosen, *sorted(older, key=lambda each: (each.step, each.round, each.source == MEMORY), reverse=True)]

    def _held(self) -> list[SavedStep]:
        held = {(each.step, each.round) for each in self._keeper.held()} if self._keeper is not None else set()
        return [SavedStep(*each, MEMORY) for each in held if not self._choice.is_abandoned(*each)]

    def _stored(self) -> list[SavedStep]:
        """Complete checkpoints of the job that no rollback left behind, the newest first.

        The master knows the rollbacks of its own log. Those of a lost log show in its checkpoints.
        """
        where = self._choice.checkpoints
        try:
            found = [each for each in checkpoints(Storage(where)) if each.complete]
        except CheckpointError as error:
            self._say(str(error))
            return []
        job, log = (self._keeper.job, self._keeper.log) if self._keeper is not None else ("", "")
        live = newest_first([each for each in found if not job or each.job in ("", job)])
        return [
            SavedStep(each.step, each.round, STORAGE, where)
            for each in live
            if (log and each.log != log) or not self._choice.is_abandoned(each.step, each.round)
        ]

    # -- one candidate

    def _try(self, saved: SavedStep) -> tuple[str, str]:
        """Load a candidate together with all ranks; returns why it failed, and where this rank got it from."""
        opened, why = self._open(saved)
        statuses, fetched = spread.gather(why), False
        providers, lacking = self._providers(statuses)
        if lacking and saved.source == MEMORY and self._size == len(self._digests):
            opened, why, fetched = self._fetch(saved, lacking, opened, why)
            statuses = spread.gather(why)
            providers, lacking = self._providers(statuses)
        if lacking:
            return self._closed(opened, f"{self._named(lacking)}: {statuses[lacking[0]]}"), ""
        if failed := self._failed("" if opened is None else self._read(opened)):
            return failed, ""
        provider = providers[self._digests[self._seat]]
        transfer = _Transfer(opened.values, opened.own, opened.targets) if opened is not None else None
        if any(statuses):
            transfer, why = self._transfer(saved, opened, provider, statuses)
            if failed := self._failed(why):
                return failed, ""
        assert transfer is not None
        self._apply(transfer.values, transfer.own)
        return "", saved.source if opened is not None and not fetched else "replica"

    def _providers(self, statuses: list[str]) -> tuple[dict[str, int], list[int]]:
        """By replica group, the first rank that can read its state; and the ranks of groups without one."""
        providers = {digest: rank for rank, digest in reversed(list(enumerate(self._digests))) if not statuses[rank]}
        return providers, [rank for rank, digest in enumerate(self._digests) if digest not in providers]

    def _fetch(
        self, saved: SavedStep, lacking: list[int], opened: _Opened | None, why: str
    ) -> tuple[_Opened | None, str, bool]:
        """Transfer shards to ranks that lack their state; returns how this rank can read it, and if it received any."""
        offers: list[fetch.ShardOffer] = spread.gather(fetch.offered(self._keeper, saved))
        values: dict[int, str] = {}
        if any(offer.ranks == self._size for offer in offers):
            wanted = [self._group_of(rank, lacking) for rank in range(self._size)]  # one of them has the tensors
        else:
            indexes = fetch.indexes(self._keeper, saved, offers)
            values = {shard: index.values for shard, index in indexes.items()}
            needed = self._needed(indexes, offers[self._rank]) if self._rank in lacking else []
            wanted = spread.gather(needed)
        received = fetch.transfer(self._keeper, saved, fetch.plan(offers, wanted))
        if not received and not (values and opened is None):
            return opened, why, False
        opened, why = self._open(saved, received, values)
        return opened, why, bool(received)

    def _group_of(self, rank: int, among: list[int]) -> list[int]:
        """The ranks among some that are of a rank's replica group, if it is one of them; itself first."""
        mates = [each for each in among if self._digests[each] == self._digests[rank]]
        return sorted(mates, key=lambda each: each != rank) if rank in mates else []

    def _needed(self, indexes: dict[int, ShardIndex], offer: fetch.ShardOffer) -> list[int]:
        """The shards that this rank needs of a step that another number of ranks saved, and that its node lacks."""
        if not indexes:
            return []
        pieces = [piece for index in indexes.values() for piece in index.pieces]
        shapes = {piece.name: StoredShape(piece.dtype, piece.size) for piece in pieces}
        ranks = next(iter(indexes.values())).ranks
        source = indexes.get(self._rank % ranks) or next(iter(indexes.values()))
        try:
            targets = list(self._targets(decoded(source.values), shapes))
        except CheckpointError:
            return []  # opening it fails for the same reason
        return fetch.overlapping(pieces_of(targets), {target.name for target in targets}, indexes, offer.held)

    def _failed(self, why: str) -> str:
        """Compare outcomes with all ranks; returns why the first one failed, empty if none did."""
        outcomes = spread.gather(why)
        failed = [rank for rank, text in enumerate(outcomes) if text]
        return f"{self._named(failed)}: {outcomes[failed[0]]}" if failed else ""

    def _named(self, ranks: list[int]) -> str:
        names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        return f"rank{'s' if len(ranks) > 1 else ''} {names}"

    def _open(
        self, saved: SavedStep, received: Sequence[StagingSlot] = (), values_of: Mapping[int, str] | None = None
    ) -> tuple[_Opened | None, str]:
        """Open a candidate's shards; returns why this rank cannot read all that it needs.

        Args:
            saved: the candidate.
            received: shards that were received; closed with the others.
            values_of: Python values of ranks whose shards this rank may not have.
        """
        if saved.source == STORAGE and self._rank != self._digests.index(self._digests[self._rank]):
            return None, "another rank of its replica group reads the storage"
        shards: SavedShards | None = None
        try:
            if saved.source == STORAGE:
                shards = open_stored(saved.where, saved.step, saved.round, self._keeper.job if self._keeper else "")
            elif self._keeper is None and not received:
                return None, "it has no keeper"
            else:
                shards = HeldShards(self._keeper, saved, self._rank, received, values_of)
            text = self._values_for(shards, self._rank)
            values, shapes = decoded(text[0]), shapes_of(shards)
            targets = list(self._targets(values, shapes))
            held = (piece for name in {target.name for target in targets} for piece in shards.pieces.get(name, ()))
            if gaps := missing(pieces_of(targets), held):
                raise CheckpointError(f"there is no shard with {gaps[0]}{_more(gaps)}")
        except Exception as error:
            return None, self._closed(shards, _text(error))
        return _Opened(shards, shapes, values, text[1], targets), ""

    def _closed(self, opened: _Opened | SavedShards | None, why: str) -> str:
        """Close shards whose content is of no use any more."""
        shards = opened.shards if isinstance(opened, _Opened) else opened
        if shards is not None:
            try:
                shards.close()
            except CheckpointError:
                return why
        return why

    def _values_for(self, shards: SavedShards, rank: int) -> tuple[str, bool]:
        """The Python values for a rank, and whether they are its own."""
        own = shards.ranks == self._size
        text = shards.values(rank if own else rank % shards.ranks)
        if text is not None:
            return text, own
        found = shards.any_values()
        if found is None:
            raise CheckpointError("there are no Python values")
        return found, False

    def _targets(self, values: dict[str, Any], shapes: dict[str, StoredShape]) -> Iterable[LoadTarget]:
        """The memory to fill, for each tensor that the checkpoint has under this or another name."""
        tied, objects = values.get("tied", {}), values["objects"]
        aliases = {alias: shapes[name] for alias, name in tied.items() if name in shapes}
        for name, part in self._collection.parts.items():
            if name not in objects:
                raise CheckpointError(f"nothing was saved under the name {name!r}")
            for target in part.targets(objects[name], {**shapes, **aliases}):
                stored = target.name if target.name in shapes else tied.get(target.name, "")
                if stored not in shapes:
                    raise CheckpointError(f"there is no tensor {target.name}")
                for box in target.boxes[:1]:
                    if box.size != shapes[stored].size:
                        raise CheckpointError(f"{target.name} has shape {shapes[stored].size}, expected {box.size}")
                yield LoadTarget(stored, target.boxes)

    def _read(self, opened: _Opened) -> str:
        """Fill this rank's memory from its shards; returns why that failed."""
        try:
            fill(opened.targets, opened.shards)
            opened.shards.close()
        except Exception as error:
            return self._closed(opened.shards, _text(error))
        return ""

    def _transfer(
        self, saved: SavedStep, opened: _Opened | None, provider: int, statuses: list[str]
    ) -> tuple[_Transfer | None, str]:
        """Send what this rank has to the ranks of its group that lack it, or receive it; all ranks call it."""
        digest = self._digests[self._seat]
        receivers = [rank for rank, text in enumerate(statuses) if text and self._digests[rank] == digest]
        concerned = receivers and self._seat in (provider, *receivers)
        group = spread.SpreadGroup([provider, *receivers]) if concerned else None
        transfer, why = None, ""
        try:
            transfer = self._share_values(saved, opened, group, receivers)
        except Exception as error:
            why = _text(error)
        if failed := self._failed(why):  # before the tensors: a rank that sends or receives none would block the others
            return None, failed
        assert transfer is not None
        if group is not None:
            group.boxes([box for target in transfer.targets for box in target.boxes])
            group.close()
        if transfer.kept is not None:
            with contextlib.suppress(CheckpointError):  # what was received is good
                fill(transfer.targets, transfer.kept)
                transfer.kept.close()
        return transfer, ""

    def _share_values(
        self, saved: SavedStep, opened: _Opened | None, group: spread.SpreadGroup | None, receivers: list[int]
    ) -> _Transfer:
        if opened is None:
            assert group is not None
            shapes, texts = group.object()
            text, own = texts[self._seat]
            kept = self._kept(saved)
            if kept is not None:  # a rank with damaged memory: its values, and what it copied at the boundary
                text, own = kept.values(self._rank) or text, True
            values = decoded(text)
            return _Transfer(values, own, list(self._targets(values, shapes)), kept)
        if group is not None:
            group.object((opened.shapes, {rank: self._values_for(opened.shards, rank) for rank in receivers}))
        return _Transfer(opened.values, opened.own, opened.targets)

    def _kept(self, saved: SavedStep) -> HeldShards | None:
        """What this rank has staged of a step of which it lacks tensors; None: nothing."""
        if saved.source != MEMORY or self._keeper is None:
            return None
        with contextlib.suppress(CheckpointError):
            kept = HeldShards(self._keeper, saved, self._rank)
            if kept.ranks == self._size and kept.values(self._rank) is not None:
                return kept
            kept.close()
        return None

    def _apply(self, values: dict[str, Any], own: bool) -> None:
        for name, part in self._collection.parts.items():
            part.restore(values["objects"][name])
        saved = values.get("rng")
        if own and saved:
            rng.restore(saved)
        elif saved:
            self._say("the random number generators were not restored: the saved ones belong to other ranks")


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


def _more(names: tuple[str, ...]) -> str:
    return f" and {len(names) - 1} others" if len(names) > 1 else ""
