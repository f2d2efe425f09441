"""Writes state dicts as checkpoints of ftcore: for ``torch.distributed.checkpoint.save``, and for imports.

Names are paths in the state dict: ``{"model": {"layers.0.weight": ...}}`` becomes ``model/layers.0.weight``. So what
``get_model_state_dict`` and ``get_optimizer_state_dict`` return is what a job with these names loads.

House rules: each rank writes one shard, in memory first; Python values are JSON, and refused if they cannot be.
"""

import dataclasses
import mmap
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ftcore.checkpoint import manifest, values
from ftcore.checkpoint.files import directory_name, parse_directory, shard_name, write_shard
from ftcore.checkpoint.layout import Piece, ShardIndex, placed
from ftcore.checkpoint.storage import Storage
from ftcore.worker.state import replicas
from ftcore.worker.state.copying import PendingCopies, StagedData
from ftcore.worker.state.layouts import dtype_name
from ftcore.worker.state.trees import Leaf, TreePath, text_of


class NewCheckpoint(NamedTuple):
    """A checkpoint that is written from state dicts.

    Args:
        storage: where.
        job: the job's name.
        log: what makes its shards belong together.
        step: the number of the last completed step.
        round: its round.
        shards: the number of its shards.
    """

    storage: Storage
    job: str
    log: str
    step: int
    round: int
    shards: int

    @property
    def directory(self) -> str:
        """Its directory."""
        return directory_name(self.step, self.round)

    def write(self, number: int, pieces: Sequence[tuple[Piece, Any]], text: str) -> str:
        """Write a shard from tensors; returns its file.

        Args:
            number: its number.
            pieces: the pieces and their data.
            text: the encoded Python values.

        Raises:
            CheckpointError: it cannot be written.
        """
        places, size = placed(piece for piece, _ in pieces)
        index = ShardIndex(
            job=self.job,
            log=self.log,
            round=self.round,
            step=self.step,
            rank=number,
            ranks=self.shards,
            group=number,
            groups=self.shards,
            pieces=places,
            values=text,
        )
        memory = memoryview(mmap.mmap(-1, size)) if size else memoryview(b"")
        copies = PendingCopies({})
        copies.start(StagedData(memory).plan(places, [data for _, data in pieces]))
        copies.finish()
        name = shard_name(number, self.shards)
        write_shard(self.storage, f"{self.directory}/{name}", index, memory)
        return name

    def commit(self, names: Iterable[str]) -> None:
        """Write the manifest.

        Raises:
            CheckpointError: it cannot be written.
        """
        manifest.commit(self.storage, self.directory, names, log=self.log)


def records_of(leaves: Iterable[tuple[TreePath, Any]], tensors: Iterable[TreePath]) -> dict[str, Any]:
    """Make the records of a checkpoint's objects from paths in a state dict.

    Args:
        leaves: Python values with their path.
        tensors: paths of the tensors.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in tensors:
        record = found.setdefault(str(path[0]), {"kind": "values", "tree": {}, "leaves": []})
        if not _is_state_of_parameter(path):
            leaf: Leaf = (path[1:], "tensor", text_of(path))
            record["leaves"].append(leaf)
            _set(record, path[1:], None)
    for path, value in leaves:
        _set(found.setdefault(str(path[0]), {"kind": "values", "tree": {}, "leaves": []}), path[1:], value)
    return {name: {**record, "tree": _lists(record["tree"])} for name, record in found.items()}


def _is_state_of_parameter(path: TreePath) -> bool:
    """Whether it is a tensor that belongs to a parameter of an optimizer, and is found by its name."""
    return len(path) == 4 and path[1] == "state"


def _set(record: dict[str, Any], path: TreePath, value: Any) -> None:
    if not path:
        record["tree"] = value
        return
    tree = record["tree"]
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _lists(value: Any) -> Any:
    """Turn dicts with the keys 0, 1, 2, ... into lists; the state dict had lists there."""
    if not isinstance(value, dict):
        return value
    found = {key: _lists(item) for key, item in value.items()}
    if found and all(type(key) is int for key in found) and sorted(found) == list(range(len(found))):
        return [found[number] for number in range(len(found))]
    return found


def encoded(records: Mapping[str, Any]) -> str:
    """Return the Python values of a shard that has no generators.

    Raises:
        ValueError: a value cannot be saved.
    """
    return values.encode({"objects": dict(records), "rng": {}, "tied": {}, "others": {}}, "the state")


class FtcoreStorageWriter(dcp.StorageWriter):  # type: ignore[misc]
    """Writes a checkpoint of ftcore in ``torch.distributed.checkpoint.save``.

    The planner is ``DefaultSavePlanner`` or a subclass: it has the state dict.

    Args:
        where: directory or URL of the checkpoints.
        step: the number of the last completed step.
        round_: the round.
        job: the name of the job that is to load it; empty: any.
    """

    def __init__(self, where: str, *, step: int = 0, round_: int = 0, job: str = "") -> None:
        super().__init__()
        self._where, self._step, self._round, self._job = where, step, round_, job
        self._rank = 0

    def reset(self, checkpoint_id: Any = None) -> None:
        """See ``StorageWriter``: the checkpoint is that of the constructor."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See ``StorageWriter``."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """See ``StorageWriter``."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """See ``StorageWriter``: all shards get what makes them belong together."""
        made = (uuid.uuid4().hex, len(plans))
        return [dataclasses.replace(plan, storage_data=made) for plan in plans]

    def _checkpoint(self, log: str, shards: int) -> NewCheckpoint:
        return NewCheckpoint(Storage(self._where), self._job, log, self._step, self._round, shards)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """See ``StorageWriter``."""
        log, shards = plan.storage_data
        rank = replicas.place()[0] if shards > 1 else 0
        paths = plan.planner_data or {}
        pieces = []
        for item in plan.items:
            if item.type != WriteItemType.BYTE_IO:
                chunk, name = item.tensor_data.chunk, text_of(paths.get(item.index.fqn, (item.index.fqn,)))
                data = planner.resolve_data(item).detach()
                dtype = dtype_name(data.dtype, name)
                piece = Piece(name, dtype, tuple(item.tensor_data.size), tuple(chunk.offsets), tuple(chunk.sizes))
                pieces.append((piece, data))
        leaves, tensors = [], []
        for name, value in planner.state_dict.items():  # the plan has each value on one rank only
            path = tuple(paths.get(name, (name,)))
            if isinstance(value, torch.Tensor):
                tensors.append(path)
            else:
                leaves.append((path, value))
        text = encoded(records_of(leaves, tensors))
        name = self._checkpoint(log, shards).write(rank, pieces, text)
        done: Any = Future()
        done.set_result([WriteResult(item.index, 0, (log, shards, name)) for item in plan.items])
        return done

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """See ``StorageWriter``: the manifest is written last."""
        log, shards, _ = next(result.storage_data for found in results for result in found)
        self._checkpoint(log, shards).commit(shard_name(number, shards) for number in range(shards))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """See ``StorageWriter``."""
        return parse_directory(str(checkpoint_id).rstrip("/").rpartition("/")[2]) is not None

    def storage_meta(self) -> Any:
        """See ``StorageWriter``."""
        return StorageMeta()
