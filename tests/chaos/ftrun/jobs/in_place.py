"""A tiny DDP job over gloo whose processes can stay through faults; trains until a step.

The file ``at.RANK`` has JSON: lists of code by ``PLACE STEP``, for example ``{"forward 12": ["raise ..."]}``. Each
piece of code is run once, at that place of that step: ``data``, ``forward``, ``backward``, ``optimizer`` (before its
step), ``inside`` (half of the parameters have been changed), ``evaluation``, ``saved`` (behind a step and the beginning
of its save), ``round`` (in the function of ``on_round``, with the number of its call) or ``begun 1`` (before anything
is registered).

The file ``batches`` has JSON: numbers of batches that are ``poisoned`` (not a number; on the rank ``only``, if that is
named), and that the data ``lacks``.

Arguments: the last step; ``built`` (the DDP model is made in each round) or ``outside``; ``catches``: all errors of a
step are handled by the script; ``handles``: those of its backward pass are, and the optimizer steps nevertheless;
``persists``: every fifth step is saved to storage; ``accumulates``: the first backward pass of a step keeps its
gradients to itself; ``scaled``: mixed precision with a scaler; ``compiled``: the model is compiled, and so is each DDP
model; ``drawless``: no dropout, so that no random number is drawn; ``loader``: batches come from a forked process;
``stateful``: they come from torchdata's loader with a process; ``threads``: another thread computes all
the time; ``early``: the loss is reported before the backward pass.

It prints its process and its weights at its end, so that a disturbed run can be compared with an undisturbed one.
"""

import hashlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ftcore.worker as ft

HERE = Path.cwd()
UNTIL, MODE = int(sys.argv[1]), sys.argv[2:]
NAMED = HERE / "batches"
BATCHES = {"poisoned": [], "only": None, "lacks": [], **(json.loads(NAMED.read_text()) if NAMED.exists() else {})}

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)  # equal sums, whatever a node has
torch.manual_seed(0)
drops = torch.nn.Dropout(0.0 if "drawless" in MODE else 0.2)
net = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), drops, torch.nn.Linear(32, 4)
)
torch.manual_seed(rank)


class Halves(torch.optim.AdamW):
    """Changes the parameters in two halves."""

    number = 0

    def step(self, closure=None):  # type: ignore[no-untyped-def, override]
        groups = self.param_groups
        try:
            for half, group in enumerate(groups):
                if half:
                    at("inside", self.number)
                self.param_groups = [group]
                super().step(closure)
        finally:
            self.param_groups = groups


parameters = list(net.parameters())
if "compiled" in MODE:
    net.compile(backend="aot_eager")  # the backend that needs no C++ compiler
optimizer = Halves([{"params": parameters[:3]}, {"params": parameters[3:]}], lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7, enabled="scaled" in MODE)
job = ft.join()
ddp: torch.nn.Module = net
rounds = 0
tries: dict[int, int] = {}


class Batches(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Batches that follow from their number."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self):  # type: ignore[no-untyped-def]
        for number in itertools.count(self.first):
            source = torch.Generator().manual_seed(1000 * rank + number)
            batch = torch.randn(2, 8, 16, generator=source)
            poisoned = number in BATCHES["poisoned"] and BATCHES["only"] in (None, rank)
            yield batch * float("nan") if poisoned else batch


class Numbers:
    """Batches in order, with a position."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        batches = Batches(self.given + 1)
        loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=1, multiprocessing_context="fork")
        return self._counted(iter(loader if "loader" in MODE else batches))

    def _counted(self, batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            self.given += 1
            if self.given in BATCHES["lacks"]:
                continue
            at("data", self.given)
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


class Numbered(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The batches by their numbers, from 0."""

    def __len__(self) -> int:
        return 10 * UNTIL

    def __getitem__(self, number: int) -> torch.Tensor:
        return next(iter(Batches(number + 1)))


def damage() -> None:
    """Overwrite a parameter and a moment of the optimizer."""
    with torch.no_grad():
        first = next(net.parameters())
        first.mul_(7)
        if optimizer.state[first]:
            optimizer.state[first]["exp_avg"].add_(3)


def at(place: str, number: int) -> None:
    """Run what the test has left for this place."""
    file = HERE / f"at.{rank}"
    if not file.exists():
        return
    found = json.loads(file.read_text())
    codes = found.get(f"{place} {number}")
    if codes:
        code = codes.pop(0)
        (HERE / f"new.at.{rank}").write_text(json.dumps(found))
        (HERE / f"new.at.{rank}").replace(file)
        exec(code, {"os": os, "signal": signal, "time": time, "dist": dist, "ft": ft, "damage": damage, "meet": meet})


def meet(number: int) -> None:
    """Wait until the other rank is at this place, too."""
    (HERE / f"met.{number}.{rank}").touch()
    while not (HERE / f"met.{number}.{1 - rank}").exists():
        time.sleep(0.001)


def scale(number: int) -> float:
    """A thousand, as often as ``norm.STEP`` has characters; the same on both ranks."""
    file = HERE / f"norm.{number}"
    if not file.exists():
        return 1.0
    tries[number] = tries.get(number, 0) + 1
    return 1000.0 if tries[number] <= len(file.read_text()) else 1.0


def build() -> None:
    global ddp, rounds
    rounds += 1
    at("round", rounds)
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    if "compiled" in MODE:
        ddp = torch.compile(ddp, backend="aot_eager")  # type: ignore[assignment]


def compute() -> None:
    """Keep torch busy beside the training."""
    while True:
        torch.ones(64, 64) @ torch.ones(64, 64)
        time.sleep(0.001)


at("begun", 1)
if "threads" in MODE:
    threading.Thread(target=compute, daemon=True).start()
data: Any = Numbers()
if "stateful" in MODE:
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = StatefulDataLoader(Numbered(), batch_size=None, num_workers=1)
job.register(net=net, optimizer=optimizer, data=data, **({"scaler": scaler} if "scaled" in MODE else {}))
if "built" in MODE:
    job.on_round(build)
else:
    build()


def forward(batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled="scaled" in MODE):
        return ddp(batch).square().mean()  # type: ignore[no-any-return]


def train(step: ft.TrainingStep) -> None:
    batch = step.batch
    at("forward", step.number)
    optimizer.zero_grad()
    if "accumulates" in MODE:
        with ddp.no_sync():  # type: ignore[operator]
            scaler.scale(forward(batch[0])).backward()
        loss = forward(batch[1])
    else:
        loss = forward(batch[0]) + forward(batch[1])
    if "early" in MODE:
        step.report(loss=loss.item())
    at("backward", step.number)
    try:
        scaler.scale(loss).backward()
    except Exception as error:
        if "handles" not in MODE:
            raise
        print(f"handled: {error}", flush=True)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    step.report(None if "early" in MODE else loss.item(), norm.item() * scale(step.number))
    at("optimizer", step.number)
    optimizer.number = step.number
    scaler.step(optimizer)
    scaler.update()
    if step.number % 5 == 0:
        at("evaluation", step.number)
        with torch.no_grad():
            total = net.eval()(batch[0]).square().mean()
            net.train()
        dist.all_reduce(total)


for step in job.steps(until=UNTIL, persist_every=5 if "persists" in MODE else "auto"):
    with step:
        if "catches" in MODE:
            try:
                train(step)
            except Exception as error:
                print(f"handled: {error}", flush=True)
        else:
            train(step)
        (HERE / f"new.{rank}").write_text(str(step.number))
        (HERE / f"new.{rank}").replace(HERE / f"step.{rank}")
        time.sleep(0.03)  # an agent on a busy machine sees the start of a round before its next fault
    at("saved", step.number)

digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:16]
print(f"rank {rank} of process {os.getpid()} ends with {digest}", flush=True)
dist.destroy_process_group()
