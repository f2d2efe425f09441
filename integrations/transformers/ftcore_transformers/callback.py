"""The callback of a ``Trainer``: reports steps and losses, saves and waits at step boundaries, resumes.

A step is one of the optimizer, as ``TrainerState.global_step`` counts it. Its boundary is the beginning of the next
step: logging, evaluation and the trainer's own checkpoint of the step are over there, so a resumed job does not miss
them. The last boundary is the end of the training.

``Trainer`` begins with the epoch of its own checkpoint. A resumed job begins elsewhere, so ``attach`` replaces the
trainer's ``_run_epoch``, which is private: ``attach`` checks that it has the expected arguments.

House rules: outside ``ftrun`` nothing is changed. What ``register`` and ``load`` of ``ftcore.worker`` refuse is raised.
"""

import functools
import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from transformers import TrainerCallback

import ftcore.worker as ft
from ftcore_transformers.progress import TrainerProgress

EPOCH_ARGUMENTS: Final = frozenset(
    {
        "epoch",
        "num_update_steps_per_epoch",
        "resume_from_checkpoint",
        "epochs_trained",
        "steps_trained_in_current_epoch",
    }
)
"""Arguments of ``Trainer._run_epoch`` that are used here."""

RESUMED: Final = "state restored by ftcore"
"""Given to the trainer as its checkpoint, so that it skips batches; nothing is read from it."""


def attach(
    trainer: Any,
    *,
    save_every: int = 1,
    persist_every: int | Literal["auto"] = "auto",
    objects: Mapping[str, Any] | None = None,
) -> "FtcoreTrainerCallback":
    """Let ftcore save, resume and pause a trainer; call it once, before ``trainer.train()``.

    Args:
        trainer: a ``Trainer``, or an object of a class derived from it.
        save_every: save in memory after every so many steps; 0: only on request.
        persist_every: save to storage after every so many steps; 0: only the last step, and on request. ``auto``:
            ftcore chooses the number.
        objects: further state, by name, as for ``register`` of ``ftcore.worker``.

    Returns:
        The callback, which is added to the trainer.

    Raises:
        RuntimeError: this version of transformers has another training loop.
    """
    callback = FtcoreTrainerCallback(trainer, save_every, persist_every, objects)
    trainer.add_callback(callback)
    return callback


class FtcoreTrainerCallback(TrainerCallback):  # type: ignore[misc]
    """The callback; use ``attach``.

    Args:
        trainer: the trainer.
        save_every: see ``attach``.
        persist_every: see ``attach``.
        objects: see ``attach``.

    Raises:
        RuntimeError: this version of transformers has another training loop.
    """

    def __init__(
        self,
        trainer: Any,
        save_every: int = 1,
        persist_every: int | Literal["auto"] = "auto",
        objects: Mapping[str, Any] | None = None,
    ) -> None:
        run_epoch = getattr(trainer, "_run_epoch", None)
        if run_epoch is None or not set(inspect.signature(run_epoch).parameters) >= EPOCH_ARGUMENTS:
            raise RuntimeError(
                "ftcore_transformers does not know the training loop of this Trainer (no Trainer._run_epoch with "
                f"{', '.join(sorted(EPOCH_ARGUMENTS))}); install transformers 5.20 or newer"
            )
        self._trainer = trainer
        self._save_every, self._persist_every, self._objects = save_every, persist_every, dict(objects or {})
        self._progress = TrainerProgress(trainer)
        self._steps: Iterator[ft.TrainingStep] | None = None
        self._step: ft.TrainingStep | None = None
        self._resumed = False
        self._restored: dict[str, Any] | None = None
        trainer._run_epoch = functools.partial(self._run_epoch, run_epoch)
        trainer._load_rng_state = functools.partial(_unless_resumed, trainer._load_rng_state)

    # -- the trainer's calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Register the state, and restore it."""
        if self._steps is not None:
            print("ftcore: one training of a process is saved; this one is not", file=sys.stderr, flush=True)
            self._step = None
            return
        trainer, job = self._trainer, ft.join()
        scaler = getattr(trainer.accelerator, "scaler", None)
        job.register(
            model=trainer.model_wrapped,
            optimizer=getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            scheduler=trainer.lr_scheduler,
            trainer=self._progress,
            **self._objects,
            **({"scaler": scaler} if scaler is not None else {}),
        )
        self._steps = job.steps(save_every=self._save_every, persist_every=self._persist_every, start=state.global_step)
        if job.loaded is not None and job.loaded.source:
            self._resumed, self._restored = True, ft.get_rng_states()
        self._step = next(self._steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Reach the boundary of the step before this one."""
        if self._restored is not None:
            ft.set_rng_states(self._restored)
            self._restored = None
        self._reach(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report the step."""
        ft.report(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **more: Any) -> None:
        """Report the loss, where the trainer has read it from the device."""
        if logs and "loss" in logs:
            norm = logs.get("grad_norm")
            if norm is not None and not math.isfinite(norm) and self._trainer.accelerator.scaler is not None:
                norm = None  # the scaler leaves out this step and lowers its scale: not a fault
            ft.report(state.global_step, logs["loss"], norm)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Save the last step to storage."""
        if self._step is not None:
            self._reach(state.global_step)
            ft.join().save(state.global_step, persist=True)
            ft.join().flush()

    # -- steps

    def _reach(self, step: int) -> None:
        if self._step is not None and self._steps is not None and self._step.number == step:
            self._step.end()
            self._step = next(self._steps)

    def _run_epoch(self, run_epoch: Any, **given: Any) -> None:
        """Run an epoch: the trainer's own function, from the first step that is not completed."""
        progress, step, epoch = self._progress, self._trainer.state.global_step, given["epoch"]
        if self._resumed and (step >= self._trainer.state.max_steps or progress.stopped_early):
            self._trainer.control.should_training_stop = True
            return
        if self._resumed and epoch < progress.epoch:
            return
        if self._resumed:
            self._resumed = False
            batches = (step - progress.epoch_began) * self._trainer.args.gradient_accumulation_steps
            given |= {"resume_from_checkpoint": RESUMED, "epochs_trained": epoch}
            given["steps_trained_in_current_epoch"] = batches
            progress.draw_order_again()
        else:
            done = 0  # steps of this epoch that are in the trainer's own checkpoint, from which it continues
            if epoch == given["epochs_trained"] and given["resume_from_checkpoint"] is not None:
                done = given["steps_trained_in_current_epoch"] // self._trainer.args.gradient_accumulation_steps
            progress.begin_epoch(epoch, step - done)
        try:
            run_epoch(**given)
        except Exception as error:
            if self._step is not None:
                self._step.__exit__(type(error), error, error.__traceback__)
            raise


def _unless_resumed(load: Any, checkpoint: str | None) -> None:
    if checkpoint != RESUMED:
        load(checkpoint)
