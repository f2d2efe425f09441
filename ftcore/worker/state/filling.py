"""Fills memory of registered tensors from saved shards: each rank reads the slices that overlap its own.

A slice is copied from where it was read, which is staging memory or the buffer of this slice: large ones by several
threads, so that the pages of memory that is new are made by several processors. To a CUDA device they go through two
page-locked buffers, one of which is filled while the other one is sent.

House rules: bytes of storage are verified before they are copied; memory is checked when the shards are closed. At
most one slice of a file is in memory. Python values are not read here. ``torch.distributed.checkpoint`` is not
imported: that takes a third of a second in each new process.
"""

import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

import torch

from ftcore.checkpoint.layout import Piece, overlap
from ftcore.worker.state.copying import is_plain, memmove
from ftcore.worker.state.layouts import TensorBox, write
from ftcore.worker.state.parts import LoadTarget
from ftcore.worker.state.shards import SavedShards

CHUNK_BYTES: Final = 4 << 20
"""What a thread copies at a time; smaller tensors are copied by the caller."""

SENT_BYTES: Final = 32 << 20
"""Size of a page-locked buffer."""

THREADS_MAX: Final = 8
"""More threads are no faster: they share the bandwidth of the memory."""


def pieces_of(targets: Iterable[LoadTarget]) -> list[Piece]:
    """The slices that fill the targets; their type is not said."""
    return [_slice_of(target.name, box) for target in targets for box in target.boxes]


def _slice_of(name: str, box: TensorBox) -> Piece:
    return Piece(name, "uint8", box.size, box.offset, box.shape)


def fill(targets: Sequence[LoadTarget], shards: SavedShards) -> None:
    """Fill targets from shards. Each slice is read once, whatever number of targets it has.

    Raises:
        CheckpointError: something is damaged, or cannot be read.
    """
    boxes: dict[str, list[TensorBox]] = {}
    for target in targets:
        boxes.setdefault(target.name, []).extend(target.boxes)
    with torch.no_grad(), CopyThreads(_threads()) as threads:
        for name, wanted in boxes.items():
            for piece in shards.pieces.get(name, ()):
                common = [(box, overlap(piece, _slice_of(name, box))) for box in wanted]
                if all(part is None for _, part in common):
                    continue
                data = tensor_of(piece, shards.read(piece))
                for box, part in common:
                    if part is not None:
                        threads.copy(
                            narrowed(box.data, part.target, part.shape), narrowed(data, part.source, part.shape)
                        )


def _threads() -> int:
    """This rank's part of the processors."""
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return max(1, min(THREADS_MAX, len(os.sched_getaffinity(0)) // ranks))


class CopyThreads:
    """Copies tensors with several threads, which end with the context.

    Args:
        count: the number of threads; 1: the caller copies.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None
        self._sending: list[tuple[Any, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        for _, sent in self._sending:
            sent.synchronize()

    def copy(self, target: Any, source: Any) -> None:
        """Copy a tensor into another one of its shape; one on a device has the data when the context ends."""
        if target.nbytes <= CHUNK_BYTES or not _are_same_bytes(target, source):
            write(target, source)
        elif target.device.type == "cuda":
            self._send(target, source)
        elif self._count < 2:
            write(target, source)
        else:
            self._move(int(target.data_ptr()), int(source.data_ptr()), int(target.nbytes))

    def _move(self, to: int, begin: int, size: int) -> None:
        self._pool = self._pool or ThreadPoolExecutor(self._count, "ftcore-fill")

        def move(at: int) -> None:
            memmove(to + at, begin + at, min(CHUNK_BYTES, size - at))

        for _ in self._pool.map(move, range(0, size, CHUNK_BYTES)):
            pass

    def _send(self, target: Any, source: Any) -> None:
        """Copy to a device; the source may be freed at once."""
        to = target.reshape(-1).view(torch.uint8)
        begin, size = int(source.data_ptr()), int(source.nbytes)
        while len(self._sending) < 2:
            self._sending.append((torch.empty(SENT_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()))
        for at in range(0, size, SENT_BYTES):
            buffer, sent = self._sending.pop(0)
            sent.synchronize()
            part = min(SENT_BYTES, size - at)
            self._move(int(buffer.data_ptr()), begin + at, part)
            with torch.cuda.device(target.device):
                to[at : at + part].copy_(buffer[:part], non_blocking=True)
                sent = torch.cuda.current_stream().record_event()
            self._sending.append((buffer, sent))


def _are_same_bytes(target: Any, source: Any) -> bool:
    """Whether a tensor is a copy of the other one if its bytes are."""
    is_known = source.device.type == "cpu" and target.device.type in ("cpu", "cuda")
    return bool(is_known and target.dtype == source.dtype and is_plain(target) and is_plain(source))


def tensor_of(piece: Piece, data: memoryview) -> Any:
    """Return the data of a piece as a tensor, without a copy; only to be read."""
    dtype = getattr(torch, piece.dtype)
    if not piece.bytes:
        return torch.empty(piece.shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the memory is read-only; so is what is done here
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(piece.shape)


def narrowed(tensor: Any, offsets: Sequence[int], lengths: Sequence[int]) -> Any:
    """Return a view of a box of a tensor.

    Args:
        tensor: the tensor.
        offsets: where the box begins, by dimension.
        lengths: its shape.
    """
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        if length != tensor.size(dimension):
            tensor = tensor.narrow(dimension, offset, length)
    return tensor
