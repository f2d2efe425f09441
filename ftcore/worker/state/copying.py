"""Copies tensors into staging memory while the training thread computes.

| tensor | copy |
|---|---|
| contiguous, on the CPU, at least ``SMALL_BYTES`` | ``memmove`` in chunks, one thread, without the interpreter lock |
| others on the CPU | ``torch._foreach_copy_`` in batches: one call without the interpreter lock for many tensors |
| on a CUDA device | non-blocking into pinned memory, on a side stream that begins after what is queued now |

A call for each small tensor would wait for the interpreter lock each time, up to 5 ms behind a busy training thread.

House rules: a copy reads the tensors' memory only. It is valid if no tensor's version changed until ``start`` ends, and
nothing writes them on a device before its events.
"""

import contextlib
import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch

from ftcore.checkpoint.layout import Piece
from ftcore.worker.state.collect import StateEntry

SMALL_BYTES: Final = 128 << 10
CHUNK_BYTES: Final = 32 << 20
BATCH: Final = 256
"""Tensors of one call: torch keeps the interpreter lock while it unpacks them."""

_PORTABLE: Final = 1
"""``cudaHostRegisterPortable``: pinned for all devices of the process."""

memmove = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
"""Copies bytes, without the interpreter lock: address to write, address to read, number of bytes."""


class CopyPlan(NamedTuple):
    """Copies of some tensors into a slot.

    Args:
        moves: address to write, address to read, and bytes.
        batches: targets and sources of one call each.
        queued: targets and sources on devices.
    """

    moves: list[tuple[int, int, int]]
    batches: list[tuple[list[Any], list[Any]]]
    queued: list[tuple[Any, Any]]


class StagedData:
    """The data of a slot as tensors.

    Args:
        view: the memory.
    """

    def __init__(self, view: memoryview) -> None:
        self._bytes = torch.frombuffer(view, dtype=torch.uint8) if len(view) else torch.empty(0, dtype=torch.uint8)
        self.address = int(self._bytes.data_ptr())
        self._known: tuple[Sequence[StateEntry], CopyPlan] | None = None

    def plan(self, pieces: Iterable[Piece], sources: Iterable[Any]) -> CopyPlan:
        """Return the copies of tensors to the places of their pieces."""
        plan, small, others = CopyPlan([], [], []), [], []
        for piece, source in zip(pieces, sources, strict=True):
            if not piece.bytes:
                continue
            if source.device.type != "cpu":
                plan.queued.append((self._tensor(piece), source))
            elif piece.bytes >= SMALL_BYTES and is_plain(source):
                plan.moves.append((self.address + piece.at, int(source.data_ptr()), piece.bytes))
            else:
                small.append(self._tensor(piece))
                others.append(source)
        for at in range(0, len(small), BATCH):
            plan.batches.append((small[at : at + BATCH], others[at : at + BATCH]))
        return plan

    def plan_of(self, entries: Sequence[StateEntry]) -> CopyPlan:
        """Return the copies of entries; made once for the same list of them."""
        if self._known is None or self._known[0] is not entries:
            self._known = entries, self.plan([each.piece for each in entries], [each.data for each in entries])
        return self._known[1]

    def _tensor(self, piece: Piece) -> Any:
        return self._bytes[piece.at : piece.at + piece.bytes].view(getattr(torch, piece.dtype)).view(piece.shape)


class PendingCopies:
    """Copies of one staging into a slot.

    Args:
        after: events of CUDA streams after which the tensors have their values, by device index.
    """

    def __init__(self, after: dict[int, Any]) -> None:
        self._after = after
        self._streams: dict[int, Any] = {}
        self._sources: list[Any] = []

    def start(self, plan: CopyPlan) -> None:
        """Copy what is on the CPU, and queue the copies of what is on devices."""
        for target, source in plan.queued:
            self._queue(target, source)
        for targets, sources in plan.batches:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)
        for to, begin, left in plan.moves:
            while left:
                count = min(left, CHUNK_BYTES)
                memmove(to, begin, count)
                to, begin, left = to + count, begin + count, left - count

    def _queue(self, target: Any, source: Any) -> None:
        device = source.device
        stream = self._streams.get(device.index)
        if stream is None:
            stream = self._streams[device.index] = torch.cuda.Stream(device)
            if device.index in self._after:
                stream.wait_event(self._after[device.index])
        with torch.cuda.stream(stream), torch.no_grad():
            target.copy_(source, non_blocking=True)
        self._sources.append(source)  # its memory is not reused before `finish`

    def events(self) -> list[tuple[int, Any]]:
        """Events of the queued copies, by device index: what writes the tensors waits for them."""
        return [(index, stream.record_event()) for index, stream in self._streams.items()]

    def finish(self) -> None:
        """Wait until all copies are complete."""
        for stream in self._streams.values():
            stream.synchronize()
        self._sources.clear()


def uses_cuda() -> bool:
    """Whether this process computes on CUDA devices."""
    return bool(torch.cuda.is_initialized())


def queued() -> dict[int, Any]:
    """Return an event on the current stream of the CUDA device in use: what is queued until now."""
    if not uses_cuda():
        return {}
    device = torch.cuda.current_device()
    return {device: torch.cuda.current_stream(device).record_event()}


def pin(view: memoryview, device: int) -> bool:
    """Let CUDA devices write directly into mapped memory; returns whether they can.

    Args:
        view: the memory.
        device: a device that this process uses; no other one is initialised.
    """
    if not uses_cuda() or device < 0:
        return False
    with torch.cuda.device(device):
        address = torch.frombuffer(view, dtype=torch.uint8).data_ptr()
        if int(torch.cuda.cudart().cudaHostRegister(address, len(view), _PORTABLE)) == 0:
            return True
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")  # CUDA raises the error again at this thread's next kernel: this one
        return False


def unpin(view: memoryview, device: int) -> None:
    """Undo ``pin``."""
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(torch.frombuffer(view, dtype=torch.uint8).data_ptr())


def is_plain(source: Any) -> bool:
    """Whether a tensor's bytes are those of its elements, in order."""
    return bool(source.is_contiguous() and not source.is_conj() and not source.is_neg())
