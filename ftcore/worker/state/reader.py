"""Reads a checkpoint with ``torch.distributed.checkpoint.load``: a storage reader over saved shards.

It serves any state dict, with any planner. A job restores its registered state without it (``filling``).

House rules: bytes are verified before they are copied. Python values are not read here.
"""

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
from torch.futures import Future

from ftcore.checkpoint.files import parse_directory
from ftcore.checkpoint.layout import Piece
from ftcore.checkpoint.storage import Storage
from ftcore.worker.state.filling import narrowed, tensor_of
from ftcore.worker.state.layouts import write
from ftcore.worker.state.shards import SavedShards, StoredShards


class FtcoreStorageReader(dcp.StorageReader):  # type: ignore[misc]
    """Reads shards of ftcore for ``torch.distributed.checkpoint.load``.

    Tensors have the names of a state dict such as ``{"model": get_model_state_dict(...)}``: ``model.layers.0.weight``.

    Args:
        checkpoint: open shards, or the path or URL of a checkpoint's directory.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """

    def __init__(self, checkpoint: SavedShards | str | Path) -> None:
        super().__init__()
        self._shards = open_directory(str(checkpoint)) if isinstance(checkpoint, str | Path) else checkpoint
        self._chunks: dict[Any, Piece] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """See ``StorageReader``: the checkpoint is that of the constructor."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """See ``StorageReader``."""
        found: dict[str, Any] = {}
        for name, pieces in self._shards.pieces.items():
            key = name.replace("/", ".")
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
                    part = narrowed(data, item.storage_offsets, item.lengths)
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
