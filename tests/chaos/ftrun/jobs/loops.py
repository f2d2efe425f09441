"""Training loops as they are written for torchrun, with a checkpoint of their own every five steps.

The argument is the loop:

| loop | what its steps are |
|---|---|
| ``plain`` | of one optimizer |
| ``accumulation`` | one for two backward passes, without synchronization in the first |
| ``amp`` | with autocast and a gradient scaler, which leaves out one of them |
| ``gan`` | two optimizers |
| ``lbfgs`` | a closure that is called several times |
| ``zero`` | ``ZeroRedundancyOptimizer``: an optimizer inside an optimizer |
| ``backward`` | an optimizer for each parameter, which steps within the backward pass |
| ``fsdp`` | ``fully_shard``, saved with ``torch.distributed.checkpoint`` |
| ``compile`` | a compiled model |
| ``functional`` | no optimizer: the new parameters are computed; reported to ftcore |

``evaluation`` and ``save`` as a further argument: three seconds on rank 0 after step 4 or 5, in which the others wait.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mishap import compare, happen, record
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOOP, PHASES = sys.argv[1], set(sys.argv[2:])
STEPS, SAVE_EVERY = 12, 5
CHECKPOINT = Path("checkpoint")

dist.init_process_group("gloo")
RANK = dist.get_rank()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 1))


def batch(step: int, part: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1000 * step + 10 * part + RANK)
    return torch.randn(8, 8), torch.randn(8, 1)


def loss_of(model: Any, step: int, part: int = 0) -> torch.Tensor:
    x, y = batch(step, part)
    return (model(x) - y).square().mean()


class Loop:
    """A model, its optimizers, and a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: Any = DistributedDataParallel(net())
        self.parts: dict[str, Any] = {"model": self.model}
        self.step_of: Callable[[int], torch.Tensor] = self.plain
        self.optimizer: Any = None

    def with_optimizer(self, optimizer: Any) -> "Loop":
        self.optimizer = self.parts["optimizer"] = optimizer
        return self

    def plain(self, step: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, step)
        loss.backward()
        happen(step)
        self.optimizer.step()
        return loss

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load(self, state: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])

    def save(self, step: int) -> None:
        state = {**self.state(), "step": step}
        if RANK == 0:
            torch.save(state, CHECKPOINT.with_suffix(".new"))
            CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)
        dist.barrier()

    def resume(self) -> int:
        if not CHECKPOINT.exists():
            return 0
        state = torch.load(CHECKPOINT)
        self.load(state)
        return int(state["step"])


def accumulation(loop: Loop, step: int) -> torch.Tensor:
    loop.optimizer.zero_grad()
    with loop.model.no_sync():
        loss_of(loop.model, step, 1).backward()
    happen(step)
    loss = loss_of(loop.model, step)
    loss.backward()
    loop.optimizer.step()
    return loss


class Amp(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.with_optimizer(torch.optim.AdamW(self.model.parameters(), 0.01))
        self.scaler = self.parts["scaler"] = torch.amp.GradScaler("cpu", init_scale=16.0)
        self.step_of = self.scaled

    def scaled(self, step: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(self.model, step)
        self.scaler.scale(loss).backward()
        happen(step)
        if step == LEFT_OUT:
            next(self.model.parameters()).grad.fill_(torch.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


LEFT_OUT = 2
"""The step whose gradient is infinite: the scaler leaves it out."""


class Gan(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.other = self.parts["other"] = DistributedDataParallel(net())
        self.with_optimizer(torch.optim.Adam(self.model.parameters(), 0.01))
        self.second = self.parts["second"] = torch.optim.Adam(self.other.parameters(), 0.01)
        self.step_of = self.both

    def both(self, step: int) -> torch.Tensor:
        loss = self.plain(step)
        self.second.zero_grad()
        (loss_of(self.other, step, 1) + 0.1 * loss.detach()).backward()
        self.second.step()
        return loss


def lbfgs(loop: Loop, step: int) -> torch.Tensor:
    def closure() -> torch.Tensor:
        loop.optimizer.zero_grad()
        loss = loss_of(loop.model, step)
        loss.backward()
        return loss

    happen(step)
    return torch.as_tensor(loop.optimizer.step(closure))


class Zero(Loop):
    def __init__(self) -> None:
        super().__init__()
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self.with_optimizer(ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, lr=0.01))

    def state(self) -> dict[str, Any]:
        self.optimizer.consolidate_state_dict(0)
        return super().state() if RANK == 0 else {}


class Backward(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.model = self.parts["model"] = net()
        self.optimizers = {p: torch.optim.AdamW([p], 0.01) for p in self.model.parameters()}
        for number, (p, optimizer) in enumerate(self.optimizers.items()):
            self.parts[f"optimizer{number}"] = optimizer
            p.register_post_accumulate_grad_hook(self.hook)
        self.step_of = self.within

    def hook(self, p: Any) -> None:
        dist.all_reduce(p.grad)
        self.optimizers[p].step()
        self.optimizers[p].zero_grad()

    def within(self, step: int) -> torch.Tensor:
        loss = loss_of(self.model, step)
        happen(step)
        loss.backward()
        return loss


class Fsdp(Loop):
    def __init__(self) -> None:
        super().__init__()
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        self.model = net()
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.with_optimizer(torch.optim.AdamW(self.model.parameters(), 0.01))

    def _dicts(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, step: int) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self._dicts(), checkpoint_id=f"dcp.{step}")
        if RANK == 0:
            CHECKPOINT.write_text(str(step))
        dist.barrier()

    def resume(self) -> int:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        if not CHECKPOINT.exists():
            return 0
        step, state = int(CHECKPOINT.read_text()), self._dicts()
        dcp.load(state, checkpoint_id=f"dcp.{step}")
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return step


class Functional(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.plain_net = self.parts["model"] = net()
        self.step_of = self.descend

    def descend(self, step: int) -> torch.Tensor:
        import ftcore.worker

        params = {name: p.detach() for name, p in self.plain_net.named_parameters()}

        def loss(params: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (torch.func.functional_call(self.plain_net, params, (x,)) - y).square().mean()

        x, y = batch(step)
        grads, found = torch.func.grad_and_value(loss)(params, x, y)
        happen(step)
        for name, p in self.plain_net.named_parameters():
            dist.all_reduce(grads[name])
            p.data.sub_(0.01 * grads[name])
        ftcore.worker.report(step, loss=found.item())
        return found


def made() -> Loop:
    kinds = {"amp": Amp, "gan": Gan, "zero": Zero, "backward": Backward, "fsdp": Fsdp, "functional": Functional}
    if LOOP in kinds:
        return kinds[LOOP]()
    loop = Loop()
    if LOOP == "compile":
        loop.model = torch.compile(loop.model)
    if LOOP in ("accumulation", "lbfgs"):
        step_of = accumulation if LOOP == "accumulation" else lbfgs
        loop.step_of = lambda step: step_of(loop, step)
    if LOOP == "lbfgs":
        return loop.with_optimizer(torch.optim.LBFGS(loop.model.parameters(), lr=0.1, max_iter=4))
    return loop.with_optimizer(torch.optim.AdamW(loop.model.parameters(), 0.01))


loop = made()
begun = step = loop.resume()
while step < STEPS:
    step += 1
    record(step, loop.step_of(step).item())
    if "evaluation" in PHASES and step == 4:
        if RANK == 0:
            time.sleep(3)
        dist.barrier()
    if step % SAVE_EVERY == 0:
        if "save" in PHASES and step == 5 and RANK == 0:
            time.sleep(3)
        loop.save(step)
left_out = LOOP == "amp"
made_here = STEPS - begun - (left_out and begun < LEFT_OUT)
compare(STEPS - left_out, made_here)
dist.destroy_process_group()
