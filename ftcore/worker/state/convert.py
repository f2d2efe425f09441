"""Imports checkpoints of torch: without a job, on one process.

House rules: nothing that could execute code is unpickled: a file of ``torch.save`` is loaded with ``weights_only``, the
metadata of ``torch.distributed.checkpoint`` with the classes of its format alone. At most ``SHARD_BYTES`` of data, or
one tensor, are in memory.
"""

import contextlib
import io
import pickle
import re
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ftcore.checkpoint.layout import Piece, grouped
from ftcore.checkpoint.storage import MANIFEST, Storage
from ftcore.errors import CheckpointError
from ftcore.worker.state.export import Progress, no_progress
from ftcore.worker.state.layouts import dtype_name
from ftcore.worker.state.trees import TreePath, text_of
from ftcore.worker.state.writer import NewCheckpoint, encoded, records_of

SHARD_BYTES: Final = 1 << 30

_METADATA: Final = "torch.distributed.checkpoint.metadata"
_SAFE_NAMES: Final = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *((_METADATA, f"{name}StorageMetadata") for name in ("Bytes", "Chunk", "Tensor")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}
"""What metadata may have, besides dtypes; exact names, because a dotted name could reach any module."""


class ImportedCheckpoint(NamedTuple):
    """What was imported.

    Args:
        directory: the directory of the checkpoint, below that of the checkpoints.
        step: its step.
        objects: the names of what a script must register to load it.
        tensors: the number of tensors.
        bytes: bytes of the tensors.
    """

    directory: str
    step: int
    objects: list[str]
    tensors: int
    bytes: int


def import_checkpoint(
    src: str, dst: str, *, step: int | None = None, job: str = "", progress: Progress = no_progress
) -> ImportedCheckpoint:
    """Convert a checkpoint of torch into one of ftcore.

    Args:
        src: a file of ``torch.save``, or a directory of ``torch.distributed.checkpoint.save``. A file with tensors
            alone is a model's state dict.
        dst: directory or URL of the checkpoints.
        step: the number of the last completed step; None: the number ``step`` in the checkpoint, else 0.
        job: the name of the job that is to load it; empty: any.
        progress: called after each tensor.

    Raises:
        CheckpointError: it cannot be read, has objects that are not plain data, there is a checkpoint of this step, or
            it cannot be written.
    """
    if not Path(src).exists():
        raise CheckpointError(f"{src} does not exist; expected a file of torch.save, or a directory of dcp.save")
    source = _DcpDirectory(src) if Path(src).is_dir() else _TorchFile(src)
    found = step if step is not None else next((v for path, v in source.leaves if path == ("step",)), 0)
    if not isinstance(found, int) or found < 0:
        raise CheckpointError(f"{src}: expected a number of at least 0 as its step; found {found!r}")
    bins = list(grouped(source.tensors, lambda path: source.tensors[path].bytes, SHARD_BYTES))
    made = NewCheckpoint(Storage(dst), job, uuid.uuid4().hex, found, 0, max(1, len(bins)))
    if made.storage.exists(made.directory):
        where = made.storage.where(made.directory)
        if made.storage.exists(f"{made.directory}/{MANIFEST}"):
            raise CheckpointError(f"{where} exists; name another step, or another directory")
        raise CheckpointError(f"{where} is unfinished: a conversion was cut off, or is in progress; remove it first")
    total = sum(piece.bytes for piece in source.tensors.values())
    try:
        records = records_of(source.leaves, source.tensors)
        _write(made, source, bins, encoded(records), lambda done: progress(done, total))
    except ValueError as error:
        raise CheckpointError(f"{src} cannot be imported: {error}") from error
    objects = sorted(name for name in records if name != "step")
    return ImportedCheckpoint(made.directory, found, objects, len(source.tensors), total)


def _write(
    made: NewCheckpoint,
    source: "_TorchFile | _DcpDirectory",
    bins: list[list[TreePath]],
    text: str,
    progress: Callable[[int], None],
) -> None:
    """Write the shards, and the manifest last; what is not complete is removed."""
    done = 0

    def read(path: TreePath) -> Any:
        nonlocal done
        data = source.read(path)
        done += source.tensors[path].bytes
        progress(done)
        return data

    try:
        names = [
            made.write(number, [(source.tensors[path], read(path)) for path in paths], "" if number else text)
            for number, paths in enumerate(bins or [[]])
        ]
        made.commit(names)
    except BaseException:
        with contextlib.suppress(CheckpointError):
            made.storage.remove(made.directory)
        raise


def _why_not(path: str, error: Exception) -> str:
    """Why a file is not loaded, and what to do if it has objects of classes."""
    if isinstance(error, OSError):
        return str(error.strerror)
    refused = re.search(r"GLOBAL (\S+)", str(error))
    if refused is None:
        return "it is not a file of torch.save, or it is damaged"
    return (
        f"it has an object of {refused[1]}, whose loading may run code. If you trust the file: load it in Python with "
        f"torch.load({path!r}, weights_only=False), keep tensors, numbers, text, lists and dicts, and save these with "
        "torch.save"
    )


class _TorchFile:
    """A file of ``torch.save``; tensors are read from the file when they are used."""

    def __init__(self, path: str) -> None:
        try:
            try:
                loaded = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
            except RuntimeError:  # a file of the format before torch 1.6
                loaded = torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:  # of the unpickler, on a file of another kind: any
            raise CheckpointError(f"{path} cannot be imported: {_why_not(path, error)}") from error
        if not isinstance(loaded, dict):
            raise CheckpointError(f"{path} cannot be imported: expected a dict, found a {type(loaded).__name__}")
        if loaded and all(isinstance(value, torch.Tensor) for value in loaded.values()):
            loaded = {"model": loaded}
        self._tensors: dict[TreePath, Any] = {}
        self.tensors: dict[TreePath, Piece] = {}
        self.leaves: list[tuple[TreePath, Any]] = []
        self._visit(loaded, ())

    def _visit(self, value: Any, path: TreePath) -> None:
        if isinstance(value, dict) and value:
            plain = bool(path) and all(isinstance(key, str) and key.startswith("module.") for key in value)
            for key, item in value.items():
                self._visit(item, (*path, key.removeprefix("module.") if plain else key))
        elif isinstance(value, list) and value:
            for number, item in enumerate(value):
                self._visit(item, (*path, number))
        elif isinstance(value, torch.Tensor):
            name = text_of(path)
            shape = tuple(value.shape)
            self.tensors[path] = Piece(name, dtype_name(value.dtype, name), shape, (0,) * len(shape), shape)
            self._tensors[path] = value.detach()
        else:
            self.leaves.append((path, value))

    def read(self, path: TreePath) -> Any:
        return self._tensors[path]


class _SafeUnpickler(pickle.Unpickler):
    """Unpickles metadata of ``torch.distributed.checkpoint``, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _SAFE_NAMES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"its metadata has a {module}.{name}")


class _SafeReader(dcp.FileSystemReader):  # type: ignore[misc]
    """Reads a directory without unpickling anything but plain data."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        return _SafeUnpickler(io.BytesIO((Path(self.path) / ".metadata").read_bytes())).load()


class _SafePlanner(DefaultLoadPlanner):  # type: ignore[misc]
    """Plans the load of flat names; Python values must be plain data."""

    def load_bytes(self, read_item: Any, value: Any) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


class _DcpDirectory:
    """A directory of ``torch.distributed.checkpoint.save``."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            metadata = _SafeReader(path).read_metadata()
            paths = metadata.planner_data or {}
            described = metadata.state_dict_metadata
            self._names = {tuple(paths.get(name, (name,))): name for name in described}
            self.tensors: dict[TreePath, Piece] = {}
            plain: dict[str, Any] = {}
            for where, name in self._names.items():
                each = described[name]
                if isinstance(each, TensorStorageMetadata):
                    shape, full = tuple(each.size), text_of(where)
                    dtype = dtype_name(each.properties.dtype, full)
                    self.tensors[where] = Piece(full, dtype, shape, (0,) * len(shape), shape)
                else:
                    plain[name] = None
            self._load(plain)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{path} cannot be imported: it has no .metadata; expected a directory of dcp.save, or a file of "
                "torch.save"
            ) from error
        except (pickle.UnpicklingError, OSError, EOFError, AttributeError, dcp.CheckpointException) as error:
            raise CheckpointError(f"{path} cannot be imported: {error}") from error
        self.leaves = [(where, plain[name]) for where, name in self._names.items() if name in plain]

    def _load(self, state: dict[str, Any]) -> None:
        if state:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                planner = _SafePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
                dcp.load(state, storage_reader=_SafeReader(self._path), planner=planner, no_dist=True)

    def read(self, path: TreePath) -> Any:
        piece = self.tensors[path]
        found = {self._names[path]: torch.empty(piece.size, dtype=getattr(torch, piece.dtype))}
        try:
            self._load(found)
        except dcp.CheckpointException as error:
            raise CheckpointError(f"{self._path} cannot be imported: {error}") from error
        return found[self._names[path]]
