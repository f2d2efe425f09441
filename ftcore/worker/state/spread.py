"""Sends restored state from ranks that have it to the ranks of their replica group that do not.

The first rank of a group that has the state broadcasts it over a process group of these ranks alone. Tensors travel as
bytes, small ones together, so that any dtype and any backend will do.

House rules: no rank holds more than ``BATCH_BYTES``, or one tensor, beyond its own state.
"""

import ctypes
import pickle
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from ftcore.checkpoint.layout import grouped
from ftcore.worker import _groups
from ftcore.worker.state.layouts import TensorBox, write

BATCH_BYTES: Final = 16 << 20

SHORT_BYTES: Final = 1016
"""Bytes of a value that go with its length."""

_HEAD_BYTES: Final = 8


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, by rank; of this one alone without a process group.

    Values of up to ``SHORT_BYTES`` take one collective, longer ones two: among many ranks, each takes as many messages
    in turn as there are ranks.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [value]
    data = _encoded(value)
    head = torch.zeros(_HEAD_BYTES + SHORT_BYTES, dtype=torch.uint8)
    head[:_HEAD_BYTES] = _encoded_length(data.numel())
    short, rest = data[:SHORT_BYTES], data[SHORT_BYTES:]
    head[_HEAD_BYTES : _HEAD_BYTES + short.numel()] = short
    heads = _gathered(head)
    lengths = [_decoded_length(each[:_HEAD_BYTES]) for each in heads]
    longest = max(lengths) - SHORT_BYTES
    rests = (
        _gathered(torch.nn.functional.pad(rest, (0, longest - rest.numel()))) if longest > 0 else [rest] * len(heads)
    )
    wholes = (torch.cat((first[_HEAD_BYTES:], second)) for first, second in zip(heads, rests, strict=True))
    return [_decoded(whole[:length]) for whole, length in zip(wholes, lengths, strict=True)]


def _gathered(data: Any) -> list[Any]:
    """The bytes of all ranks, by rank, on the CPU; as many on each."""
    here = data.to(device_of())
    found = [torch.empty_like(here) for _ in range(dist.get_world_size())]
    dist.all_gather(found, here)
    return [each.cpu() for each in found]


def _encoded_length(length: int) -> Any:
    return torch.tensor([length], dtype=torch.int64).view(torch.uint8)


def _decoded_length(head: Any) -> int:
    return int(head.view(torch.int64).item())


def _encoded(value: Any) -> Any:
    """A value as bytes. Torch's own collectives of objects need numpy, which not every installation has."""
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _decoded(data: Any) -> Any:
    """The value of ``_encoded``, from another rank of this job."""
    whole = data.cpu().contiguous()
    return pickle.loads(ctypes.string_at(whole.data_ptr(), whole.numel()))


def device_of(group: Any = None) -> Any:
    """The device of a process group's tensors."""
    backend = str(dist.get_backend(group))
    uses_cuda = "nccl" in backend and "gloo" not in backend
    return torch.device("cuda", torch.cuda.current_device()) if uses_cuda else torch.device("cpu")


def send_object(value: Any, rank: int) -> None:
    """Send a Python value to a rank of the job's process group, which calls ``receive_object``."""
    data = _encoded(value).to(device_of())
    dist.send(torch.tensor([data.numel()], dtype=torch.int64, device=data.device), dst=rank)
    dist.send(data, dst=rank)


def receive_object(rank: int) -> Any:
    """Receive the value that a rank sends."""
    length = torch.zeros(1, dtype=torch.int64, device=device_of())
    dist.recv(length, src=rank)
    data = torch.empty(int(length.item()), dtype=torch.uint8, device=length.device)
    dist.recv(data, src=rank)
    return _decoded(data)


class SpreadGroup:
    """A process group of one sender and its receivers.

    Args:
        ranks: the sender first, then the receivers; each of them makes this group.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._sender = ranks[0]
        self._sends = dist.get_rank() == self._sender
        with _groups.made_again():  # it does not outlive this load
            self._group = dist.new_group(sorted(ranks), use_local_synchronization=True)
        self._device = device_of(self._group)

    def object(self, value: Any = None) -> Any:
        """Send a Python value; returns it on the receivers."""
        data = _encoded(value).to(self._device) if self._sends else None
        length = torch.tensor([0 if data is None else data.numel()], dtype=torch.int64, device=self._device)
        dist.broadcast(length, src=self._sender, group=self._group)
        if data is None:
            data = torch.empty(int(length.item()), dtype=torch.uint8, device=self._device)
        dist.broadcast(data, src=self._sender, group=self._group)
        return value if self._sends else _decoded(data)

    def boxes(self, boxes: Sequence[TensorBox]) -> None:
        """Send the data of boxes, or fill them: in the same order on all ranks."""
        with torch.no_grad():
            for batch in grouped(filter(_size, boxes), _size, BATCH_BYTES):
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


def _unpack(batch: list[TensorBox], data: Any) -> None:
    at = 0
    for box in batch:
        size = _size(box)
        part = data[at : at + size]
        if at % box.data.element_size():
            part = part.clone()  # a view of another type needs its alignment
        write(box.data, part.view(box.data.dtype).view(box.shape))
        at += size
