"""Imports checkpoints of torch, and exports models: without a job, on one process.

House rules: nothing that could execute code is unpickled: a file of ``torch.save`` is loaded with ``weights_only``, the
metadata of ``torch.distributed.checkpoint`` with the classes of its format alone. At most ``SHARD_BYTES`` of data, or
one tensor, are in memory.
"""

import io
import json
import pickle
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ftcore.checkpoint.layout import ITEM_BYTES, Piece, overlap
from ftcore.checkpoint.storage import Storage
from ftcore.errors import CheckpointError
from ftcore.worker.state.collect import decoded
from ftcore.worker.state.filling import tensor_of
from ftcore.worker.state.layouts import dtype_name
from ftcore.worker.state.reader import open_directory
from ftcore.worker.state.shards import StoredShards
from ftcore.worker.state.trees import TreePath, text_of
from ftcore.worker.state.writer import NewCheckpoint, encoded, records_of

SHARD_BYTES: Final = 1 << 30

_EXPORTED: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
}
"""Types of the safetensors format."""

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


def import_checkpoint(src: str, dst: str, *, step: int | None = None, job: str = "") -> str:
    """Convert a checkpoint of torch into one of ftcore.

    Args:
        src: a file of ``torch.save``, or a directory of ``torch.distributed.checkpoint.save``. A file with tensors
            alone is a model's state dict.
        dst: directory or URL of the checkpoints.
        step: the number of the last completed step; None: the number ``step`` in the checkpoint, else 0.
        job: the name of the job that is to load it; empty: any.

    Returns:
        The directory of the checkpoint, below ``dst``.

    Raises:
        CheckpointError: it cannot be read, has objects that are not plain data, or cannot be written.
    """
    if not Path(src).exists():
        raise CheckpointError(f"{src} does not exist; expected a file of torch.save, or a directory of dcp.save")
    source = _DcpDirectory(src) if Path(src).is_dir() else _TorchFile(src)
    found = step if step is not None else next((v for path, v in source.leaves if path == ("step",)), 0)
    if not isinstance(found, int) or found < 0:
        raise CheckpointError(f"{src}: expected a number of at least 0 as its step; found {found!r}")
    bins = list(_bins(source.tensors))
    made = NewCheckpoint(Storage(dst), job, uuid.uuid4().hex, found, 0, max(1, len(bins)))
    try:
        text = encoded(records_of(source.leaves, source.tensors))
        names = [
            made.write(number, [(source.tensors[path], source.read(path)) for path in paths], "" if number else text)
            for number, paths in enumerate(bins or [[]])
        ]
    except ValueError as error:
        raise CheckpointError(f"{src} cannot be imported: {error}") from error
    made.commit(names)
    return made.directory


def _bins(tensors: dict[TreePath, Piece]) -> Iterator[list[TreePath]]:
    """Group tensors so that a group fits into memory."""
    found: list[TreePath] = []
    size = 0
    for path, piece in tensors.items():
        if found and size + piece.bytes > SHARD_BYTES:
            yield found
            found, size = [], 0
        found.append(path)
        size += piece.bytes
    if found:
        yield found


class _TorchFile:
    """A file of ``torch.save``; tensors are read from the file when they are used."""

    def __init__(self, path: str) -> None:
        try:
            try:
                loaded = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
            except RuntimeError:  # a file of the format before torch 1.6
                loaded = torch.load(path, weights_only=True, map_location="cpu")
        except (pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
            raise CheckpointError(f"{path} cannot be imported: {str(error).splitlines()[0]}") from error
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


def export_model(src: str, dst: str, name: str = "model") -> None:
    """Write the tensors of one model as one safetensors file, which ``safetensors.torch.load_file`` opens.

    Args:
        src: the directory of a checkpoint.
        dst: the file; an existing one is replaced.
        name: the name under which the model was registered.

    Raises:
        CheckpointError: the checkpoint cannot be used, has no such model, or the file cannot be written.
    """
    shards = open_directory(src)
    try:
        prefix = f"{name}/"
        stored = {each.removeprefix(prefix): each for each in sorted(shards.pieces) if each.startswith(prefix)}
        text = shards.any_values()
        tied = decoded(text).get("tied", {}) if text else {}
        stored |= {k.removeprefix(prefix): v for k, v in tied.items() if k.startswith(prefix) and v in shards.pieces}
        if not stored:
            raise CheckpointError(f"{src} has no tensors of {name!r}")
        base, _, file = str(Path(dst).absolute()).rpartition("/")
        Storage(base).write(file, _safetensors(shards, stored))
    finally:
        shards.close()


def _safetensors(shards: StoredShards, stored: dict[str, str]) -> Iterator[bytes | memoryview]:
    """The content of a safetensors file, one tensor at a time, those with the largest elements first."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    order = sorted(stored, key=lambda each: -ITEM_BYTES[shards.pieces[stored[each]][0].dtype])
    at = 0
    for name in order:
        first = shards.pieces[stored[name]][0]
        whole = Piece(first.name, first.dtype, first.size, (0,) * len(first.size), first.size)
        if first.dtype not in _EXPORTED:
            raise CheckpointError(f"{first.name} cannot be exported: the safetensors format has no {first.dtype}")
        offsets = [at, at + whole.bytes]
        header[name] = {"dtype": _EXPORTED[first.dtype], "shape": list(first.size), "data_offsets": offsets}
        at += whole.bytes
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield _whole(shards, shards.pieces[stored[name]])


def _whole(shards: StoredShards, pieces: list[Piece]) -> memoryview:
    """The data of a tensor, from all of its slices."""
    if len(pieces) == 1:
        return shards.read(pieces[0])
    size = pieces[0].size
    whole = Piece(pieces[0].name, pieces[0].dtype, size, (0,) * len(size), size)
    memory = memoryview(bytearray(whole.bytes))
    target = tensor_of(whole, memory)
    for piece in pieces:
        box = overlap(piece, whole)
        if box is not None:
            part = target
            for dimension, (offset, length) in enumerate(zip(box.target, box.shape, strict=True)):
                part = part.narrow(dimension, offset, length)
            part.copy_(tensor_of(piece, shards.read(piece)))
    return memory
