"""A tiny training with Lightning; the arguments name what it does.

``accumulation``, ``compile``, ``evaluation``, ``save`` (a ``ModelCheckpoint``), ``gan`` (two optimizers, manual
optimization), ``lbfgs`` (a closure that the optimizer calls several times), ``workers`` (a loader with processes),
``stream`` (a dataset without a length), ``stateful`` (a loader with ``load_state_dict``), ``early`` (it stops early).
``sleep`` lets evaluation and save take three seconds on rank 0. ``RESUME`` is a checkpoint of Lightning.
"""

import hashlib
import os
import sys
import time

import lightning.pytorch as pl
import torch
from ftcore_lightning import FtcoreCallback
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from mishap import compare, happen, record
from torch.utils.data import DataLoader, Dataset, IterableDataset

WHAT = set(sys.argv[1:])
STEPS = 14
EACH = 2 if "accumulation" in WHAT else 1


class Points(Dataset):
    def __len__(self) -> int:
        return 48 * EACH

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.linspace(-1, 1, 8) * (number % 7 - 3)
        if "workers" not in WHAT:
            x = x + torch.randn(8) / 8  # a random augmentation
        return x, torch.tensor([float(number % 5)])


class Stream(IterableDataset):
    def __iter__(self):  # type: ignore[no-untyped-def]
        for number in range(24 * EACH):
            x = torch.linspace(-1, 1, 8) * (number % 7 - 3)
            yield x, torch.tensor([float(number % 5)])


class Stateful:
    """A loader whose next iteration begins where a loaded state says, and else with the first batch."""

    def __init__(self) -> None:
        self.batches = self.loaded = 0

    def __len__(self) -> int:
        return 6 * EACH

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.batches, self.loaded = self.loaded % len(self), 0
        return self.read()

    def read(self):  # type: ignore[no-untyped-def]
        while self.batches < len(self):
            numbers = torch.arange(4.0) + 4 * self.batches + 1000 * int(os.environ.get("RANK", "0"))
            self.batches += 1
            yield torch.sin(numbers[:, None] * torch.arange(1.0, 9.0)), torch.cos(numbers[:, None])

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["batches"]


def net() -> torch.nn.Module:
    dropout = 0.0 if "stateful" in WHAT else 0.2  # a checkpoint of Lightning has no states of generators
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(dropout), torch.nn.Linear(32, 1)
    )


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.other = net(), net() if "gan" in WHAT else None
        self.automatic_optimization = "gan" not in WHAT

    def loss_of(self, batch, body):  # type: ignore[no-untyped-def]
        return (body(batch[0]) - batch[1]).square().mean()

    def training_step(self, batch, number):  # type: ignore[no-untyped-def]
        if self.other is None:
            return self.loss_of(batch, self.body)
        first, second = self.optimizers()
        for optimizer, body in ((first, self.body), (second, self.other)):
            loss = self.loss_of(batch, body)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return {"loss": loss.detach()}

    def validation_step(self, batch, number):  # type: ignore[no-untyped-def]
        self.log("score", self.loss_of(batch, self.body), sync_dist=True)
        if "sleep" in WHAT and self.global_rank == 0 and number == 0:
            time.sleep(3)

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        if "lbfgs" in WHAT:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)
        if self.other is not None:
            return [torch.optim.Adam(self.body.parameters(), 0.01), torch.optim.Adam(self.other.parameters(), 0.01)]
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        if "evaluation" in WHAT:
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "score"}}
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)}


class Watching(Callback):
    """Records Lightning's own step, halved for two optimizers."""

    def step_of(self, trainer: pl.Trainer) -> int:
        return trainer.global_step // 2 if "gan" in WHAT else trainer.global_step

    def on_train_start(self, trainer, module):  # type: ignore[no-untyped-def]
        self.began = None

    def on_before_optimizer_step(self, trainer, module, optimizer):  # type: ignore[no-untyped-def]
        self.began = self.step_of(trainer) if self.began is None else self.began
        happen(self.step_of(trainer) + 1)

    def on_train_batch_end(self, trainer, module, outputs, batch, number):  # type: ignore[no-untyped-def]
        record(self.step_of(trainer), outputs["loss"])

    def on_save_checkpoint(self, trainer, module, checkpoint):  # type: ignore[no-untyped-def]
        if "sleep" in WHAT and trainer.is_global_zero and trainer.global_step == 6:
            time.sleep(3)


pl.seed_everything(7)
watching = Watching()
callbacks: list[Callback] = [watching, FtcoreCallback()]
if "save" in WHAT:
    callbacks.append(ModelCheckpoint("out", every_n_train_steps=3, save_top_k=-1))
if "early" in WHAT:
    callbacks.append(EarlyStopping("score", patience=1, min_delta=100.0))
trainer = pl.Trainer(
    max_steps=-1 if "early" in WHAT or "gan" in WHAT else STEPS,
    max_epochs=3 if "gan" in WHAT else 10,
    accelerator="cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy=("ddp_find_unused_parameters_true" if "gan" in WHAT else "ddp") if "RANK" in os.environ else "auto",
    accumulate_grad_batches=EACH,
    callbacks=callbacks,
    logger=False,
    enable_checkpointing="save" in WHAT,
    enable_progress_bar=False,
    enable_model_summary=False,
    limit_val_batches=2 if "evaluation" in WHAT else 0,
    num_sanity_val_steps=1,
    val_check_interval=1.0 if "stream" in WHAT else 0.5,
    use_distributed_sampler=True,
)
module = Module()
if "stream" in WHAT:
    train = DataLoader(Stream(), batch_size=4)
elif "stateful" in WHAT:
    train = Stateful()
else:
    workers = 2 if "workers" in WHAT else 0
    train = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=workers)
fitted, validation = torch.compile(module) if "compile" in WHAT else module, DataLoader(Points(), batch_size=4)
trainer.fit(fitted, train, validation, ckpt_path=os.environ.get("RESUME"))
compare(watching.step_of(trainer), watching.step_of(trainer) - watching.began)
weights = b"".join(p.detach().contiguous().numpy().tobytes() for p in module.parameters())
print(f"ends with {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)
