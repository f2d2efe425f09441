"""Sends restored state from ranks that have it to the ranks of their replica group that do not.

The first rank of a group that has the state broadcasts it over a process group of these ranks alone. Tensors travel as
bytes, small ones together, so that any dtype and any backend will do.

House rules: no rank holds more than ``BATCH_BYTES``, or one tensor, beyond its own state.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from ftcore.worker.state.layouts import TensorBox, write

BATCH_BYTES: Final = 16 << 20


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, by rank; of this one alone without a process group."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


class SpreadGroup:
    """A process group of one sender and its receivers.

    Args:
        ranks: the sender first, then the receivers; each of them makes this group.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._sender = ranks[0]
        self._sends = dist.get_rank() == self._sender
        self._group = dist.new_group(sorted(ranks), use_local_synchronization=True)
        backend = str(dist.get_backend(self._group))
        uses_cuda = "nccl" in backend and "gloo" not in backend
        self._device = torch.device("cuda", torch.cuda.current_device()) if uses_cuda else torch.device("cpu")

    def object(self, value: Any = None) -> Any:
        """Send a Python value; returns it on the receivers."""
        found = [value]
        dist.broadcast_object_list(found, src=self._sender, group=self._group, device=self._device)
        return found[0]

    def boxes(self, boxes: Sequence[TensorBox]) -> None:
        """Send the data of boxes, or fill them: in the same order on all ranks."""
        with torch.no_grad():
            for batch in _batches(boxes):
                data = self._packed(batch) if self._sends else self._empty(batch)
                dist.broadcast(data, src=self._sender, group=self._group)
                if not self._sends:
                    _unpack(batch, data)

    def _packed(self, batch: list[TensorBox]) -> Any:
        return torch.cat([_bytes_of(box.data).to(self._device) for box in batch])

    def _empty(self, batch: list[TensorBox]) -> Any:
        return torch.empty(sum(_size(box) for box in batch), dtype=torch.uint8, device=self._device)

    def close(self) -> None:
        """Destroy the group."""
        dist.destroy_process_group(self._group)


def _size(box: TensorBox) -> int:
    return int(box.data.numel() * box.data.element_size())


def _bytes_of(data: Any) -> Any:
    return data.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _batches(boxes: Sequence[TensorBox]) -> Iterator[list[TensorBox]]:
    batch: list[TensorBox] = []
    size = 0
    for box in boxes:
        count = _size(box)
        if not count:
            continue
        if batch and size + count > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(box)
        size += count
    if batch:
        yield batch


def _unpack(batch: list[TensorBox], data: Any) -> None:
    at = 0
    for box in batch:
        size = _size(box)
        part = data[at : at + size]
        if at % box.data.element_size():
            part = part.clone()  # a view of another type needs its alignment
        write(box.data, part.view(box.data.dtype).view(box.shape))
        at += size
