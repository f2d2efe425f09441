"""The progress of a ``Trainer`` beside its model, optimizer and scheduler: counters, history, place in the data.

The place is the epoch, the steps in it, and the generators' states from which the epoch's order was drawn. Resuming
sets these states, draws the order again, skips the batches of the completed steps, and then sets the generators to
their states after the last completed step.
"""

import json
from typing import Any, Final

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

import ftcore.worker as ft

FIELDS: Final = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""Fields of ``TrainerState`` that training changes, without the history."""


class TrainerProgress:
    """Progress of a trainer, with the ``state_dict`` that ftcore saves at each step boundary.

    Args:
        trainer: the ``Trainer``.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.epoch = 0
        self.epoch_began = 0
        self.stopped_early = False
        self._order = ft.get_rng_states()
        self._history: tuple[int, str] = (-1, "[]")
        self._ranks = trainer.args.world_size

    def begin_epoch(self, epoch: int, step: int) -> None:
        """Remember where an epoch begins, before its order is drawn.

        Args:
            epoch: its number, from 0.
            step: completed steps before its first one.
        """
        self.epoch, self.epoch_began = epoch, step
        self._order = ft.get_rng_states()

    def draw_order_again(self) -> None:
        """Set the generators to the states from which the order of the epoch was drawn."""
        ft.set_rng_states(self._order)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as Python values."""
        trainer = self._trainer
        state = trainer.state
        return {
            "state": {name: getattr(state, name) for name in FIELDS},
            "history": self._history_text(state.log_history),
            "loss": [trainer._tr_loss.item(), trainer._total_loss_scalar, trainer._globalstep_last_logged],
            "flos": trainer.current_flos,
            "stopped": trainer.control.should_training_stop and state.global_step < state.max_steps,
            "callbacks": [[type(each).__name__, each.state()["attributes"]] for each in self._stateful()],
            "place": [self.epoch, self.epoch_began, self._ranks],
            "order": self._order,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Set the trainer's progress to what ``state_dict`` returned."""
        trainer = self._trainer
        for name in FIELDS:
            setattr(trainer.state, name, saved["state"][name])
        trainer.state.log_history = json.loads(saved["history"])
        loss, trainer._total_loss_scalar, trainer._globalstep_last_logged = saved["loss"]
        trainer._tr_loss.fill_(loss)
        trainer.current_flos, self.stopped_early = saved["flos"], saved["stopped"]
        for each, (name, attributes) in zip(self._stateful(), saved["callbacks"], strict=False):
            if type(each).__name__ == name:
                for key, value in attributes.items():
                    setattr(each, key, value)
        self.epoch, began, ranks = saved["place"]
        steps = (trainer.state.global_step - began) * ranks // self._ranks  # of the same number of samples
        self.epoch_began = trainer.state.global_step - steps
        self._order = saved["order"]

    def _stateful(self) -> list[TrainerCallback]:
        """The callbacks with a state of their own, such as early stopping."""
        return [each for each in self._trainer.callback_handler.callbacks if isinstance(each, ExportableState)]

    def _history_text(self, history: list[dict[str, float]]) -> str:
        """The history as JSON, encoded only after it has grown."""
        if self._history[0] != len(history):
            self._history = (len(history), json.dumps(history, default=float))
        return self._history[1]
