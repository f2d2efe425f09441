"""A tiny training with ``Trainer``; the arguments name what it does.

``accumulation``, ``compile``, ``evaluation``, ``save``.
``sleep`` lets the evaluation and the save take three seconds on rank 0. ``RESUME`` is a checkpoint of the trainer.
"""

import hashlib
import os
import sys
import time

import ftcore_transformers
import torch
from mishap import compare, happen, record
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

WHAT = set(sys.argv[1:])
STEPS = 14  # two and a third epochs


class Points(Dataset):
    def __len__(self) -> int:
        return 96 if "accumulation" in WHAT else 48

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        x = torch.linspace(-1, 1, 8) * (number % 7 - 3)
        return {"x": x, "labels": torch.tensor([float(number % 5)])}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.body(x) - labels).square().mean()}


class Watching(TrainerCallback):
    began = None

    def on_pre_optimizer_step(self, args, state, control, **more):  # type: ignore[no-untyped-def]
        self.began = state.global_step if self.began is None else self.began
        happen(state.global_step + 1)

    def on_log(self, args, state, control, logs=None, **more):  # type: ignore[no-untyped-def]
        if logs and "loss" in logs:
            record(state.global_step, logs["loss"])

    def on_evaluate(self, args, state, control, **more):  # type: ignore[no-untyped-def]
        if "sleep" in WHAT and args.process_index == 0 and state.global_step == 7:
            time.sleep(3)

    on_save = on_evaluate


set_seed(7)
args = TrainingArguments(
    output_dir="out",
    max_steps=STEPS,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2 if "accumulation" in WHAT else 1,
    torch_compile="compile" in WHAT,
    eval_strategy="steps" if "evaluation" in WHAT else "no",
    eval_steps=7,
    save_strategy="steps" if "save" in WHAT else "no",
    save_steps=7,
    logging_steps=1,
    learning_rate=0.01,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    remove_unused_columns=False,
    ddp_backend="gloo" if "RANK" in os.environ else None,
    ddp_find_unused_parameters=False,
)
watching = Watching()
trainer = Trainer(model=Net(), args=args, train_dataset=Points(), eval_dataset=Points(), callbacks=[watching])
ftcore_transformers.attach(trainer)
trainer.train(resume_from_checkpoint=os.environ.get("RESUME"))
compare(trainer.state.global_step, trainer.state.global_step - watching.began)
weights = b"".join(p.detach().contiguous().numpy().tobytes() for p in trainer.model.parameters())
print(f"ends with {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)
