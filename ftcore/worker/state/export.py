"""Exports the model of a checkpoint as ``transformers`` and ``safetensors`` open it: without a job, on one process.

The result is a directory with ``model.safetensors``, or with several such files and ``model.safetensors.index.json``.
Tied tensors are written once: the metadata of the file names the others, as ``safetensors.torch.load_model`` expects;
``transformers`` ties them again. A dict of plain values that is registered as ``config`` becomes ``config.json``.

House rules: at most one tensor is in memory. The directory appears when all of it is durable, or never.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ftcore.checkpoint.files import SAFETENSORS_TYPES, parse_directory
from ftcore.checkpoint.layout import ITEM_BYTES, Piece, grouped, overlap
from ftcore.checkpoint.local_files import sync_directory
from ftcore.checkpoint.storage import Storage
from ftcore.errors import CheckpointError
from ftcore.worker.state.collect import decoded
from ftcore.worker.state.filling import tensor_of
from ftcore.worker.state.reader import open_directory
from ftcore.worker.state.shards import StoredShards

FILE_BYTES: Final = 5_000_000_000
"""Bytes of tensors in a file, as in ``transformers``."""

CONFIG: Final = "config"
"""The name under which a script registers the configuration of its model."""

Progress = Callable[[int, int], None]
"""Called with the bytes that are done, and with their total."""

_TYPES: Final = {**SAFETENSORS_TYPES, "complex64": "C64"}


class ExportedModel(NamedTuple):
    """What was exported.

    Args:
        step: the step of the checkpoint.
        files: names of the files with tensors.
        tensors: the number of tensors.
        bytes: bytes of the tensors.
        tied: names that are tied to another tensor, with its name; they are not in the files.
        config: whether there is a ``config.json``.
    """

    step: int
    files: list[str]
    tensors: int
    bytes: int
    tied: dict[str, str]
    config: bool


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


def export_model(
    src: str, dst: str, name: str = "model", *, file_bytes: int = FILE_BYTES, progress: Progress = no_progress
) -> ExportedModel:
    """Write the tensors of one model as safetensors files.

    Args:
        src: the directory of a checkpoint.
        dst: the directory to make.
        name: the name under which the model was registered.
        file_bytes: bytes of tensors in a file; a larger tensor has a file of its own.
        progress: called after each tensor.

    Raises:
        CheckpointError: the checkpoint cannot be used or has no such model, or the directory exists or cannot be
            written.
    """
    target = Path(dst).absolute()
    if os.path.lexists(target):
        raise CheckpointError(f"{dst} exists; expected the name of a new directory")
    shards = open_directory(src)
    part = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        made = _Export(src, shards, name, file_bytes)
        made.write(Storage(str(part)), progress)
        part.rename(target)
        sync_directory(target.parent)
        return made.result
    except OSError as error:
        raise CheckpointError(f"cannot write {dst}: {error.strerror}") from error
    finally:
        shards.close()
        shutil.rmtree(part, ignore_errors=True)


class _Export:
    """The files of a model.

    Args:
        src: the checkpoint, for messages.
        shards: its shards.
        name: the name under which the model was registered.
        file_bytes: bytes of tensors in a file.
    """

    def __init__(self, src: str, shards: StoredShards, name: str, file_bytes: int) -> None:
        self._shards = shards
        self._done = 0
        text = shards.any_values()
        values = decoded(text) if text else {"objects": {}}
        prefix = f"{name}/"
        self._wholes: dict[str, Piece] = {}
        for stored in sorted(shards.pieces):
            if stored.startswith(prefix):
                self._wholes[stored.removeprefix(prefix)] = _whole_piece(shards.pieces[stored][0])
        tied: dict[str, str] = {}
        first: dict[str, str] = {}
        for alias, stored in values.get("tied", {}).items():
            if not alias.startswith(prefix):
                continue
            own = stored.removeprefix(prefix)
            if not stored.startswith(prefix):  # it was stored as a part of another object
                own = first.setdefault(stored, alias.removeprefix(prefix))
                self._wholes[own] = _whole_piece(shards.pieces[stored][0])
            if own != alias.removeprefix(prefix):
                tied[alias.removeprefix(prefix)] = own
        if not self._wholes:
            names = sorted({each.partition("/")[0] for each in shards.pieces})
            raise CheckpointError(f"{src} has no tensors of {name!r}; it has: {', '.join(names) or 'none'}")
        self._config = _config_of(values["objects"])
        groups = list(grouped(self._wholes, lambda name: self._wholes[name].bytes, file_bytes))
        self._files = dict(zip(_file_names(len(groups)), groups, strict=True))
        total = sum(each.bytes for each in self._wholes.values())
        step, _ = parse_directory(src.rstrip("/").rpartition("/")[2]) or (0, 0)
        self.result = ExportedModel(step, list(self._files), len(self._wholes), total, tied, self._config is not None)

    def write(self, storage: Storage, progress: Progress) -> None:
        """Write all files; the index last."""
        for file, names in self._files.items():
            expected = sum(self._wholes[name].bytes for name in names)
            storage.write(file, self._content(names, progress), expected)
        if self._config is not None:
            storage.write("config.json", [_json(self._config)])
        if len(self._files) > 1:
            weight_map = {name: file for file, names in self._files.items() for name in names}
            index = {"metadata": {"total_size": self.result.bytes}, "weight_map": weight_map}
            storage.write("model.safetensors.index.json", [_json(index)])

    def _content(self, names: list[str], progress: Progress) -> Iterator[bytes | memoryview]:
        """The content of a file, one tensor at a time, those with the largest elements first."""
        tied = {alias: stored for alias, stored in self.result.tied.items() if stored in names}
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **tied}}
        order = sorted(names, key=lambda name: -ITEM_BYTES[self._wholes[name].dtype])
        at = 0
        for name in order:
            whole = self._wholes[name]
            if whole.dtype not in _TYPES:
                raise CheckpointError(
                    f"{whole.name} cannot be exported: the safetensors format has no type {whole.dtype}"
                )
            offsets = [at, at + whole.bytes]
            header[name] = {"dtype": _TYPES[whole.dtype], "shape": list(whole.size), "data_offsets": offsets}
            at += whole.bytes
        text = json.dumps(header).encode()
        text = text.ljust(-(-len(text) // 8) * 8)
        yield len(text).to_bytes(8, "little") + text
        for name in order:
            yield _data(self._shards, self._wholes[name])
            self._done += self._wholes[name].bytes
            progress(self._done, self.result.bytes)


def _whole_piece(piece: Piece) -> Piece:
    return Piece(piece.name, piece.dtype, piece.size, (0,) * len(piece.size), piece.size)


def _file_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _config_of(objects: dict[str, Any]) -> dict[str, Any] | None:
    """What was registered as ``config``, if it is a dict of plain values."""
    record = objects.get(CONFIG)
    if record is None or record.get("kind") != "values" or record["leaves"]:
        return None
    return record["tree"] if isinstance(record["tree"], dict) else None


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def _data(shards: StoredShards, whole: Piece) -> memoryview:
    """The data of a tensor, from all of its slices."""
    pieces = shards.pieces[whole.name]
    if len(pieces) == 1:
        return shards.read(pieces[0])
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
