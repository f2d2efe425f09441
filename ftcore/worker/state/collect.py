"""Collects the registered state of this process: its tensors with their place in the whole model, its Python values.

The list of tensors is made once and kept while the objects are the same. At each step boundary a ``StateMoment`` takes
what forward and backward change: Python values, generators, buffers. So a complete state of the last step exists even
while the next one is computed.

House rules: nothing here communicates. A tensor that is registered twice (tied weights) is stored once.
"""

import gc
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import torch

from ftcore.checkpoint import values
from ftcore.checkpoint.layout import Piece, placed
from ftcore.worker.state import rng
from ftcore.worker.state.layouts import PLAIN, FlatRange, dtype_name, is_dtensor, version_of
from ftcore.worker.state.optimizer_part import OptimizerPart, expected_bytes
from ftcore.worker.state.parts import FoundTensor, ModulePart, StatePart, ValuePart, assign

RESERVED: Final = frozenset({"rng"})
EARLY_BYTES_MAX: Final = 64 << 20
"""Most bytes that are copied at each step boundary. More is copied by ``save`` alone, which waits for it.

Versions could not replace the copy: batch normalisation writes its running statistics without counting it."""

SMALL_BYTES: Final = 4 << 10
"""Largest tensor on the CPU beside a state on a device that is copied at each step boundary, such as an optimizer's
count of steps: the training thread changes it before the device has computed the step."""

_JOINED: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
"""Types of tensors that are copied in one call."""


class StateEntry(NamedTuple):
    """A piece of the state, and its data.

    Args:
        piece: the piece.
        data: a view of the data, of the piece's shape.
        owner: the tensor whose version says whether the data was changed.
        early: forward or backward may change it.
    """

    piece: Piece
    data: Any
    owner: Any
    early: bool


class EarlyCopies(NamedTuple):
    """Copies of tensors.

    Args:
        size: how many there are.
        joined: elements of tensors of one type and device, with the places of these tensors and their sizes.
        others: the other ones, with their places.
    """

    size: int
    joined: list[tuple[list[int], list[Any], Any]]
    others: list[tuple[int, Any]]

    def tensors(self) -> list[Any]:
        """The copies, in order."""
        made: list[Any] = [None] * self.size
        for places, sizes, elements in self.joined:
            parts = elements.split([size.numel() for size in sizes])
            for at, size, part in zip(places, sizes, parts, strict=True):
                made[at] = part.view(size)
        for at, each in self.others:
            made[at] = each
        return made


class CollectedState(NamedTuple):
    """The tensors of this rank.

    Args:
        entries: in the order of their place.
        bytes: size of all data.
        digest: equal for ranks that are replicas.
        tied: other names of tensors, and the name under which each is stored.
        early: what forward or backward may change.
        early_bytes: its size.
        copied: returns copies of the tensors of ``early``.
        late: the others.
        versions_of: returns the versions of the owners of ``late``.
        device: the CUDA device that has all of ``late``; -1: there is none, or several.
    """

    entries: tuple[StateEntry, ...]
    bytes: int
    digest: str
    tied: dict[str, str]
    early: tuple[StateEntry, ...]
    early_bytes: int
    copied: Callable[[], EarlyCopies]
    late: tuple[StateEntry, ...]
    versions_of: Callable[[], list[int]]
    device: int = -1


class StateMoment(NamedTuple):
    """What forward and backward change, as it was at a step boundary.

    Args:
        step: the number of the last completed step.
        collected: the tensors at that time.
        records: Python values by part.
        rng: states of the generators.
        early: copies of the early entries, in their order; None: they are too large for a copy at each boundary.
        mono: monotonic nanoseconds.
    """

    step: int
    collected: CollectedState
    records: dict[str, dict[str, Any]]
    rng: rng.CapturedRng
    early: EarlyCopies | None
    mono: int

    def encoded(self, others: Mapping[int, str]) -> str:
        """Return the Python values as text for a shard.

        Args:
            others: values of other ranks of the replica group, as they encoded them.

        Raises:
            ValueError: a value cannot be saved.
        """
        everything = {
            "objects": self.records,
            "rng": rng.packed(self.rng),
            "tied": self.collected.tied,
            "others": {str(rank): text for rank, text in others.items()},
        }
        try:
            return values.encode(everything, "the state")
        except ValueError:
            for name, record in self.records.items():  # again, for the path as the script knows it
                values.encode(record.get("tree"), name)
            raise


class StateCollection:
    """The registered objects of this process, in the order of their registration."""

    def __init__(self) -> None:
        self.parts: dict[str, StatePart] = {}
        self.collected: CollectedState | None = None
        self._scalers: dict[str, Any] = {}
        self._rebuilt: set[str] = set()
        self._order: list[str] = []
        self._always_early: frozenset[str] = frozenset()
        self._collected_early: frozenset[str] = frozenset()

    def register(self, objects: Mapping[str, Any], rebuilt: bool = False) -> None:
        """Add objects.

        Args:
            objects: by name. Modules, optimizers of torch, generators, objects with ``state_dict`` and
                ``load_state_dict``, dicts and lists.
            rebuilt: others are registered under these names in each round.

        Raises:
            ValueError: a name is taken, or something cannot be saved; the message has its path.
            TypeError: an object is of none of these kinds.
        """
        before = dict(self.parts)
        try:
            ordered = sorted(objects, key=lambda name: isinstance(objects[name], torch.optim.Optimizer))
            for name in ordered:  # modules first: they name an optimizer's parameters
                self._add(name, objects[name])
            added = [name for name in self.parts if name not in before]
            for name in added:
                values.encode(self.parts[name].record().get("tree"), name)
            self.collect()
            self._rebuilt |= set(added) if rebuilt else set()
        except BaseException:
            self.parts, self.collected = before, None
            raise

    def _add(self, name: str, value: Any) -> None:
        if name in self.parts or name in RESERVED or "/" in name or not name:
            raise ValueError(f"the name {name!r} cannot be registered: it is taken, reserved, empty or has a '/'")
        if isinstance(value, torch.nn.Module):
            module = ModulePart(name, value)
            self.parts[name] = module
            self.parts |= {part.name: part for part in module.extras()}
        elif isinstance(value, torch.optim.Optimizer):
            self.parts[name] = OptimizerPart(name, value, self._name_of)
        else:
            self.parts[name] = ValuePart(name, *_accessors(name, value))
            if hasattr(value, "_per_optimizer_states"):
                self._scalers[name] = value

    def _name_of(self, param: Any) -> tuple[str, FlatRange | None] | None:
        for part in self.parts.values():
            if isinstance(part, ModulePart) and id(param) in part.names:
                return part.names[id(param)], part.flat_of(param)
        return None

    def leave_round(self) -> None:
        """Forget the objects of this round, so that their memory is free when those of the next one are made."""
        if self._rebuilt:
            self._order = self._order or list(self.parts)
            self.parts = {name: part for name, part in self.parts.items() if name not in self._rebuilt}
            self._scalers = {name: each for name, each in self._scalers.items() if name not in self._rebuilt}
            self.collected = None

    def enter_round(self) -> None:
        """Check that the same names are registered as in the round before.

        Raises:
            ValueError: they are not.
        """
        if not self._rebuilt:
            return
        if set(self.parts) != set(self._order):
            differ = ", ".join(sorted(set(self.parts) ^ set(self._order)))
            raise ValueError(f"functions of on_round register other names than in the round before: {differ}")
        self.parts, self._order = {name: self.parts[name] for name in self._order}, []
        self.collect()

    def refers_to_groups(self) -> bool:
        """Whether a module or an optimizer that outlives its round refers to process groups, as sharded ones do."""
        lasting = [part for name, part in self.parts.items() if name not in self._rebuilt]
        params = (each for part in lasting if isinstance(part, ModulePart) for each in part.module.parameters())
        if any(is_dtensor(each) or type(each).__name__ == "FlatParameter" for each in params):
            return True
        optimizers = (part.optimizer for part in lasting if isinstance(part, OptimizerPart))
        held = (type(value).__name__ for each in optimizers for value in vars(each).values())
        return any(name.startswith("ProcessGroup") for name in held)

    @property
    def scales(self) -> bool:
        """Whether a gradient scaler is registered: it handles gradients that are not finite."""
        return bool(self._scalers)

    def forget_gradients(self) -> None:
        """Remove the gradients of a step that failed, and what scalers know of them."""
        for part in self._modules():
            part.module.zero_grad(set_to_none=True)
        for scaler in self._scalers.values():
            scaler._per_optimizer_states.clear()

    def _modules(self) -> list[ModulePart]:
        return [part for part in self.parts.values() if isinstance(part, ModulePart)]

    def expected_bytes(self, collected: CollectedState) -> int:
        """Bytes of this rank's data, with the state that optimizers will have after their first step."""
        optimizers = [part.optimizer for part in self.parts.values() if isinstance(part, OptimizerPart)]
        return collected.bytes + sum(expected_bytes(each) for each in optimizers if not each.state)

    def copy_early(self, names: set[str]) -> None:
        """From now on copy tensors at the step boundary: they were changed by something else than an optimizer."""
        self._always_early = self._always_early | names

    # -- collecting

    def moment(self, step: int) -> StateMoment:
        """Return what forward and backward change; called by the training thread at a step boundary.

        Args:
            step: the number of the last completed step.

        Raises:
            ValueError: something cannot be saved.
        """
        records = {name: part.record() for name, part in self.parts.items()}
        collected = self.collected
        is_current = all(part.is_current() for part in self.parts.values())
        if collected is None or self._collected_early != self._always_early or not is_current:
            collected = self.collect()
            records = {name: part.record() for name, part in self.parts.items()}
        early = collected.copied() if collected.early_bytes <= EARLY_BYTES_MAX else None
        return StateMoment(step, collected, records, rng.capture(), early, time.monotonic_ns())

    def collect(self) -> CollectedState:
        """List all tensors again."""
        was_enabled = gc.isenabled()
        gc.disable()  # it would look through a hundred thousand new tuples again and again
        try:
            self.collected = self._collected()
        finally:
            if was_enabled:
                gc.enable()
        return self.collected

    def _collected(self) -> CollectedState:
        found: list[tuple[Piece, Any, Any, bool]] = []
        self._collected_early = self._always_early
        defining = hashlib.blake2b(digest_size=16)
        names: dict[Any, str] = {}
        tied: dict[str, str] = {}
        for part in self.parts.values():
            for each in part.collect():
                first = names.setdefault(_memory(each), each.name)
                if first != each.name:
                    tied[each.name] = first
                    continue
                early = each.early or each.name in self._collected_early
                for piece, data in _pieces(each):
                    found.append((piece, data, each.owner, early))
                    if each.defining:
                        defining.update(msgspec.json.encode(piece))
        pieces, size = placed(piece for piece, _, _, _ in found)
        on_device = any(data.device.type == "cuda" for _, data, _, _ in found)
        entries = tuple(
            StateEntry(piece, data, owner, early or (on_device and _is_small(data)))
            for piece, (_, data, owner, early) in zip(pieces, found, strict=True)
        )
        changing = tuple(entry for entry in entries if entry.early)
        late = tuple(entry for entry in entries if not entry.early)
        versions_of = _version_reader([entry.owner for entry in late])
        return CollectedState(
            entries,
            size,
            defining.hexdigest(),
            tied,
            changing,
            sum(entry.piece.bytes for entry in changing),
            _copier(changing),
            late,
            versions_of,
            _device_of(late),
        )


def _is_small(data: Any) -> bool:
    return bool(data.device.type == "cpu" and data.nbytes <= SMALL_BYTES)


def _device_of(entries: Iterable[StateEntry]) -> int:
    """The CUDA device that has all data, or -1."""
    devices = {entry.data.device for entry in entries if entry.piece.bytes}
    device = devices.pop() if len(devices) == 1 else None
    return int(device.index) if device is not None and device.type == "cuda" else -1


def _copier(entries: Sequence[StateEntry]) -> Callable[[], EarlyCopies]:
    """Return what copies tensors: those of one type on one device in one call, since there may be hundreds."""
    alike: dict[Any, list[int]] = {}
    for at, entry in enumerate(entries):
        if entry.data.dtype in _JOINED and entry.data.is_contiguous():
            alike.setdefault((entry.data.dtype, entry.data.device), []).append(at)
    joined = [
        (places, [entries[at].data.shape for at in places], [entries[at].data.view(-1) for at in places])
        for places in alike.values()
    ]
    alone = set(range(len(entries))).difference(*alike.values())
    others = [(at, entries[at].data) for at in sorted(alone)]

    def copied() -> EarlyCopies:
        with torch.no_grad():
            return EarlyCopies(
                len(entries),
                [(places, sizes, torch.cat(data)) for places, sizes, data in joined],
                [(at, data.clone()) for at, data in others],
            )

    nothing = EarlyCopies(0, [], [])
    return copied if entries else lambda: nothing


def _version_reader(owners: list[Any]) -> Callable[[], list[int]]:
    """Return what reads the versions of tensors: fast if all are plain ones."""
    plain = [owner for owner in owners if type(owner) in PLAIN and not owner.is_inference()]
    if len(plain) == len(owners):
        return lambda: [owner._version for owner in plain]
    return lambda: [version_of(owner) for owner in owners]


def _memory(found: FoundTensor) -> Any:
    """Equal for the same tensor under two names."""
    owner = found.owner
    if is_dtensor(owner) or not isinstance(owner, torch.Tensor) or not owner.numel() or not owner.data_ptr():
        return id(owner)
    return (owner.data_ptr(), owner.shape, owner.stride(), owner.dtype, owner.device)


def _pieces(found: FoundTensor) -> list[tuple[Piece, Any]]:
    return [
        (Piece(found.name, dtype_name(box.data.dtype, found.name), box.size, box.offset, box.shape), box.data)
        for box in found.boxes
    ]


def _accessors(name: str, value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """How the state of an object is read and set."""
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return value.state_dict, value.load_state_dict
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    if type(value).__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
        bits = value.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    if isinstance(value, dict | list):
        return lambda: value, lambda loaded: assign(value, loaded)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(
        f"{name} cannot be registered: it is a {kind}; expected a module, an optimizer, a dict or list of tensors and "
        "Python values, or an object with state_dict() and load_state_dict()"
    )


def decoded(text: str) -> dict[str, Any]:
    """Return the Python values of a shard.

    Raises:
        ValueError: the text is none.
    """
    found = values.decode(text)
    if not isinstance(found, dict) or not isinstance(found.get("objects"), dict):
        raise ValueError("not the values of a training process")
    return found
