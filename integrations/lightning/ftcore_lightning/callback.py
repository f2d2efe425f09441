"""The callback: reports steps and losses, saves and waits at step boundaries, resumes.

A step is a batch after which an optimizer has stepped. With automatic optimization that is Lightning's ``global_step``.
With manual optimization ``global_step`` counts the steps of all optimizers, so a GAN has two for each step of ftcore.

The boundary of a step is the beginning of the next batch: validation, schedulers and checkpoints of Lightning
are over there, so a resumed job does not miss them. The last boundary is the end of the training.

House rules: outside ``ftrun`` nothing is changed. What ``register`` and ``load`` of ``ftcore.worker`` refuse is raised.
"""

import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from lightning.pytorch.callbacks import Callback

import ftcore.worker as ft
from ftcore_lightning.place import DataPlace
from ftcore_lightning.progress import FitProgress


class FtcoreCallback(Callback):  # type: ignore[misc]
    """Lets ftcore save, resume and pause a trainer.

    Args:
        save_every: save in memory after every so many steps; 0: only on request.
        persist_every: save to storage after every so many steps; 0: only the last step, and on request. ``auto``:
            ftcore chooses the number.
        loss_every: report the loss after every so many steps, if it is on a device: reading it waits for the device. 0:
            the trainer's ``log_every_n_steps``. On a CPU it is reported after each step.
        objects: further state, by name, as for ``register`` of ``ftcore.worker``.
    """

    def __init__(
        self,
        save_every: int = 1,
        persist_every: int | Literal["auto"] = "auto",
        loss_every: int = 0,
        objects: Mapping[str, Any] | None = None,
    ) -> None:
        self._save_every, self._persist_every, self._loss_every = save_every, persist_every, loss_every
        self._objects = dict(objects or {})
        self._on_term: Any = signal.SIG_DFL
        self._place: DataPlace | None = None
        self._progress: FitProgress | None = None
        self._steps: Iterator[ft.TrainingStep] | None = None
        self._step: ft.TrainingStep | None = None
        self._restored: dict[str, Any] | None = None
        self._loader_states: list[Any] = []
        self._completed = 0
        self._seen = 0

    # -- Lightning's calls

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remember how SIGTERM was handled before Lightning."""
        self._on_term = signal.getsignal(signal.SIGTERM)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the states of loaders that Lightning's own checkpoint has."""
        saved = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        self._loader_states = saved.get("combined_loader", [])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Register the state, and restore it."""
        self._completed = self._seen = trainer.global_step
        if self._steps is not None:
            print("ftcore: one training of a process is saved; this one is not", file=sys.stderr, flush=True)
            self._step = self._place = None
            return
        job, place = ft.join(), DataPlace(trainer)
        self._progress = FitProgress(trainer, place, (self,))
        optimizers = {f"optimizer_{number}": each for number, each in enumerate(trainer.optimizers)}
        schedulers = {f"scheduler_{n}": each.scheduler for n, each in enumerate(trainer.lr_scheduler_configs)}
        if trainer.datamodule is not None:
            schedulers["datamodule"] = trainer.datamodule
        job.register(
            model=trainer.model,
            **optimizers,
            **schedulers,
            **self._objects,
            precision=trainer.precision_plugin,
            trainer=self._progress,
        )
        self._steps = job.steps(save_every=self._save_every, persist_every=self._persist_every, start=self._completed)
        self._step = next(self._steps)
        if job.loaded is None:
            return  # outside ftrun
        signal.signal(signal.SIGTERM, self._on_term)  # Lightning's handler calls a collective, also while ranks wait
        self._place = place
        if job.loaded.source:
            self._completed, self._restored = self._step.number - 1, ft.get_rng_states()
        else:
            place.begin(self._loader_states)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Prepare the loaders of the epoch."""
        if self._progress is not None:
            self._progress.batches_done = 0
        if self._place is not None and trainer.current_epoch > 0:
            self._place.take_samplers()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Reach the boundary of the step before this batch."""
        if self._restored is not None and self._progress is not None:
            self._progress.restore_loops()
            ft.set_rng_states(self._restored)
            self._restored, self._seen = None, trainer.global_step
        self._reach()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the step, if an optimizer has stepped."""
        if self._progress is not None:
            self._progress.batches_done += 1
        if self._place is not None:
            self._place.batch_ended()
        if trainer.global_step != self._seen:
            self._seen = trainer.global_step
            self._completed += 1
            ft.report(self._completed, self._loss(trainer, outputs))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last step to storage."""
        if self._step is not None and self._progress is not None:
            self._progress.has_ended = True
            self._reach()
            ft.join().save(self._completed, persist=True)
            ft.join().flush()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save in memory what was complete before the step that failed."""
        if self._step is not None:
            self._step.__exit__(type(exception), exception, exception.__traceback__)

    # -- steps

    def _reach(self) -> None:
        if self._step is not None and self._steps is not None and self._step.number == self._completed:
            self._step.end()
            self._step = next(self._steps)

    def _loss(self, trainer: Any, outputs: Any) -> float | None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return None
        every = self._loss_every or trainer.log_every_n_steps
        if loss.device.type != "cpu" and (every < 1 or self._completed % every):
            return None
        is_divided = trainer.lightning_module.automatic_optimization  # by Lightning
        return float(loss.item()) * (trainer.accumulate_grad_batches if is_divided else 1)
