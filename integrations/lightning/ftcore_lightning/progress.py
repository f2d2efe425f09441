"""The progress of a ``Trainer`` beside its module, optimizers and schedulers: loops, callbacks, place in the data.

Tensors in the state of callbacks become Python values: they are small, and differ from rank to rank.
"""

import sys
from typing import Any, Final

import torch

from ftcore_lightning.place import DataPlace

ELEMENTS_MAX: Final = 1024
"""Largest tensor in the state of a callback."""

_TENSOR: Final = "tensor of"


class FitProgress:
    """Progress of a trainer, with the ``state_dict`` that ftcore saves at each step boundary.

    Args:
        trainer: the ``Trainer``.
        place: its place in the data.
        ignored: callbacks that are not saved.
    """

    def __init__(self, trainer: Any, place: DataPlace, ignored: tuple[Any, ...]) -> None:
        self._trainer, self._place = trainer, place
        self._ignored = list(ignored)
        self._loops: dict[str, Any] = {}
        self.batches_done = 0
        """Batches of the epoch that are done."""
        self.has_ended = False
        """Whether the trainer has ended its training."""

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as Python values."""
        loops = self._trainer.fit_loop.state_dict()
        loops.get("state_dict", {}).pop("combined_loader", None)  # `place` has it, before the next batch is read
        return {
            "loops": loops,
            "callbacks": self._callback_states(),
            "place": self._place.state(self.batches_done),
            "ended": self.has_ended,
            "stop": bool(self._trainer.should_stop),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Set the state of callbacks, and go to the place in the data; ``restore_loops`` does the rest."""
        for each in self._trainer.callbacks:
            if each.state_key in saved["callbacks"]:
                each.load_state_dict(_unpacked(saved["callbacks"][each.state_key]))
        self.batches_done, self.has_ended = saved["place"]["batches"], saved["ended"]
        self._trainer.should_stop = saved["stop"]
        self._loops = saved["loops"]
        loop = self._trainer.fit_loop
        resumed = {**self._loops}
        batch = resumed["epoch_loop.batch_progress"]
        resumed["epoch_loop.batch_progress"] = {**batch, "is_last_batch": False}  # else it would not be computed
        loop.load_state_dict(resumed)
        loop.reset()
        if not self.has_ended:
            self._place.resume(saved["place"], loop.epoch_progress.current.processed)

    def restore_loops(self) -> None:
        """Set the progress of all loops; called where it was saved, at the beginning of a batch."""
        loop = self._trainer.fit_loop
        loop.load_state_dict(self._loops)
        inner = loop.epoch_loop
        for each in (loop, inner, inner.automatic_optimization, inner.manual_optimization, inner.val_loop):
            each.on_iteration_done()  # it is not restarting any more

    def _callback_states(self) -> dict[str, Any]:
        found = {}
        for each in self._trainer.callbacks:
            if each in self._ignored:
                continue
            try:
                if state := each.state_dict():
                    found[each.state_key] = _packed(state)
            except ValueError as error:
                print(f"ftcore: the state of the callback {each.state_key} is not saved: {error}", file=sys.stderr)
                self._ignored.append(each)
        return found


def _packed(value: Any) -> Any:
    """Return a value with Python values in place of tensors.

    Raises:
        ValueError: it has a large tensor.
    """
    if isinstance(value, torch.Tensor):
        if value.numel() > ELEMENTS_MAX:
            raise ValueError(f"it has a tensor of {value.numel()} elements; expected at most {ELEMENTS_MAX}")
        return [_TENSOR, str(value.dtype).removeprefix("torch."), str(value.device), value.tolist()]
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_packed(item) for item in value)
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 4 and value[0] == _TENSOR:
        return torch.tensor(value[3], dtype=getattr(torch, value[1]), device=value[2])
    if isinstance(value, dict):
        return {key: _unpacked(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_unpacked(item) for item in value)
    return value
