"""Reads a checkpoint with ``torch.distributed.checkpoint``: a storage reader over saved shards, and a planner.

``FtcoreStorageReader`` serves ``dcp.load`` of any state dict. ``TargetPlanner`` plans for memory that was prepared
piece by piece, so a tensor may consist of several boxes (FSDP1). Each rank plans by itself (``no_dist=True``): it reads
the slices that overlap its own, and holds one of them at a time.

House rules: bytes are verified before they are copied. Python values are not read here.
"""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.futures import Future

from ftcore.checkpoint.files import parse_directory
from ftcore.checkpoint.layout import Piece
from ftcore.checkpoint.storage import Storage
from ftcore.errors import CheckpointError
from ftcore.worker.state.layouts import TensorBox, write
from ftcore.worker.state.parts import LoadTarget
from ftcore.worker.state.shards import SavedShards, StoredShards


class FtcoreStorageReader(dcp.StorageReader):  # type: ignore[misc]
    """Reads shards of ftcore for ``torch.distributed.checkpoint.load``.

    Tensors have the names of a state dict such as ``{"model": get_model_state_dict(...)}``: ``model.layers.0.weight``.

    Args:
        checkpoint: open shards, or the path or URL of a checkpoint's directory.
        dotted: give tensors the names of a nested state dict; False: those of ftcore, ``model/layers.0.weight``.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """

    def __init__(self, checkpoint: SavedShards | str | Path, *, dotted: bool = True) -> None:
        super().__init__()
        self._shards = open_directory(str(checkpoint)) if isinstance(checkpoint, str | Path) else checkpoint
        self._dotted = dotted
        self._chunks: dict[Any, Piece] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """See ``StorageReader``: the checkpoint is that of the constructor."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """See ``StorageReader``."""
        found: dict[str, Any] = {}
        for name, pieces in self._shards.pieces.items():
            key = name.replace("/", ".") if self._dotted else name
            properties = TensorProperties(dtype=getattr(torch, pieces[0].dtype))
            chunks = [ChunkStorageMetadata(torch.Size(each.offset), torch.Size(each.shape)) for each in pieces]
            found[key] = TensorStorageMetadata(properties, torch.Size(pieces[0].size), chunks)
            for piece in pieces:
                self._chunks[MetadataIndex(key, piece.offset)] = piece
        return Metadata(found, storage_meta=StorageMeta())

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See ``StorageReader``."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """See ``StorageReader``."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """See ``StorageReader``."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """See ``StorageReader``: each slice is read once, whatever number of targets it has."""
        wanted: dict[Any, list[Any]] = {}
        for item in plan.items:
            wanted.setdefault(item.storage_index, []).append(item)
        with torch.no_grad():
            for index, items in wanted.items():
                piece = self._chunks[index]
                data = tensor_of(piece, self._shards.read(piece))
                for item in items:
                    part = _narrowed(data, item.storage_offsets, item.lengths)
                    target = planner.resolve_tensor(item).detach()
                    write(target, part)
                    planner.commit_tensor(item, target)
        done: Any = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """See ``StorageReader``."""
        return parse_directory(str(checkpoint_id).rstrip("/").rpartition("/")[2]) is not None


def open_directory(path: str) -> StoredShards:
    """Open the checkpoint in a directory, for example ``/checkpoints/step-000000012-r3``.

    Raises:
        CheckpointError: it cannot be used.
    """
    base, slash, directory = path.rstrip("/").rpartition("/")
    return StoredShards(Storage(base or ("/" if slash else ".")), directory)


def tensor_of(piece: Piece, data: memoryview) -> Any:
    """Return the data of a piece as a tensor, without a copy; only to be read."""
    dtype = getattr(torch, piece.dtype)
    if not piece.bytes:
        return torch.empty(piece.shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the memory is read-only; so is what is done here
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(piece.shape)


def _narrowed(tensor: Any, offsets: Sequence[int], lengths: Sequence[int]) -> Any:
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        if length != tensor.size(dimension):
            tensor = tensor.narrow(dimension, offset, length)
    return tensor


class TargetPlanner(LoadPlanner):  # type: ignore[misc]
    """Plans the reads for prepared memory.

    Args:
        targets: the memory, by name of the tensor.
    """

    def __init__(self, targets: Iterable[LoadTarget]) -> None:
        self._boxes: dict[str, list[TensorBox]] = {}
        for target in targets:
            self._boxes.setdefault(target.name, []).extend(target.boxes)
        self._metadata: Any = None

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        """See ``LoadPlanner``; the state dict is not used."""
        self._metadata = metadata

    def create_local_plan(self) -> Any:
        """See ``LoadPlanner``."""
        items: list[ReadItem] = []
        for name, boxes in self._boxes.items():
            chunks = [ChunkStorageMetadata(torch.Size(box.offset), torch.Size(box.shape)) for box in boxes]
            items += create_read_items_for_chunk_list(name, self._metadata.state_dict_metadata[name], chunks)
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[Any]) -> list[Any]:
        """See ``LoadPlanner``."""
        return global_plan

    def finish_plan(self, central_plan: Any) -> Any:
        """See ``LoadPlanner``."""
        return central_plan

    def load_bytes(self, read_item: Any, value: Any) -> None:
        """See ``LoadPlanner``; Python values are read in another way."""
        raise AssertionError("the plan has tensors only")

    def resolve_tensor(self, read_item: Any) -> Any:
        """See ``LoadPlanner``."""
        index = read_item.dest_index
        box = self._boxes[index.fqn][index.index]  # by number: an untied model fills two from the same slice
        return _narrowed(box.data, read_item.dest_offsets, read_item.lengths)

    def commit_tensor(self, read_item: Any, tensor: Any) -> None:
        """See ``LoadPlanner``."""


def pieces_of(targets: Iterable[LoadTarget]) -> list[Piece]:
    """The slices that fill the targets; their type is not said."""
    return [Piece(target.name, "uint8", box.size, box.offset, box.shape) for target in targets for box in target.boxes]


def fill(targets: Sequence[LoadTarget], shards: SavedShards) -> None:
    """Fill targets from shards.

    Raises:
        CheckpointError: something is damaged, or cannot be read.
    """
    if not any(target.boxes for target in targets):
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            dcp.load(
                {},
                storage_reader=FtcoreStorageReader(shards, dotted=False),
                planner=TargetPlanner(targets),
                no_dist=True,
            )
        except dcp.CheckpointException as error:
            reasons = [reason for reason, _ in error.failures.values()]
            raise next((each for each in reasons if isinstance(each, CheckpointError)), error) from error
