"""Cases of staging: each runs on one rank or more, and asserts by itself."""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import cases
import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ftcore.worker import Slice, join
from ftcore.worker.state import copying, stage


class Gate:
    """Holds the staging thread in its first copy."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self._plain = copying.PendingCopies.start
        gate = self

        def start(copies: Any, plan: Any) -> None:
            gate.entered.set()
            assert gate.open.wait(60)
            gate._plain(copies, plan)

        copying.PendingCopies.start = start  # type: ignore[method-assign]


class Waited(threading.Event):
    """An event that says that something waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waiting.set()
        return super().wait(timeout)


def job_of(**objects: Any) -> Any:
    job = join()
    job.register(**objects)
    return job


def flush(job: Any) -> Any:
    job._stager.flush()
    return job._stager._job.error


def simple() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def backward(model: nn.Module) -> None:
    model(torch.randn(5, 3)).sum().backward()


# -- odd tensors


def odd(seed: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)

    def bits(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty(shape, dtype=dtype)
        raw = torch.randint(0, 256, (made.numel() * made.element_size(),), generator=draw, dtype=torch.uint8)
        return raw.view(dtype).view(shape)

    dtypes = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16"]
    dtypes += ["float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]
    found: dict[str, Any] = {name: bits(3, 5, dtype=getattr(torch, name)) for name in dtypes}
    found["bool"] = torch.rand(7, generator=draw) > 0.5
    found["scalar"] = bits(dtype=torch.float64)
    found["empty"] = torch.empty(0, 4 + seed % 2)
    found["transposed"] = bits(6, 4, dtype=torch.float32).t()
    found["strided"] = bits(6, 4, dtype=torch.int64)[::2, 1:3]
    found["expanded"] = bits(1, 4, dtype=torch.int16).expand(3, 4)
    found["conjugated"] = torch.randn(4, dtype=torch.complex64, generator=draw).conj()
    found["large"] = bits(300, 200, dtype=torch.float32)
    found["last"] = bits(2, 8, 6, 6, dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    found["numbers"] = np.arange(seed, seed + 40_000, dtype=np.int32)
    found["nested"] = [
        {"a": (bits(2, dtype=torch.int8), np.float32(seed) / 3, "ü")},
        {1: float("nan"), None: b"\0\xff"},
    ]
    return found


def odd_saved(out: Path) -> None:
    state, draw = odd(4), torch.Generator().manual_seed(11)
    numbers = np.random.default_rng(4)
    numbers.normal(), torch.rand(2, generator=draw)
    job = job_of(state=state, draw=draw, numbers=numbers)
    job.save(1)
    assert not flush(job)


def odd_loaded(out: Path) -> None:
    state, expected = odd(5), odd(4)
    draw, numbers = torch.Generator(), np.random.default_rng(9)
    job = job_of(state=state, draw=draw, numbers=numbers)
    assert job.load() == 1
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        found = state[name]
        if isinstance(value, torch.Tensor):
            assert found.dtype == value.dtype and found.shape == value.shape, name
            plain = [x.resolve_conj().contiguous().reshape(-1).view(torch.uint8) for x in (found, value)]
            assert torch.equal(*plain), name
    assert (state["numbers"] == expected["numbers"]).all()
    assert repr(state["nested"]) == repr(_floats(expected["nested"]))
    before = torch.Generator().manual_seed(11)
    torch.rand(2, generator=before)
    assert torch.equal(torch.rand(3, generator=draw), torch.rand(3, generator=before))
    other = np.random.default_rng(4)
    other.normal()
    assert numbers.normal() == other.normal()


def _floats(nested: Any) -> Any:
    return [{"a": (nested[0]["a"][0], float(nested[0]["a"][1]), "ü")}, nested[1]]


# -- objects


class Extra(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.count, self.scale = 0, torch.ones(5000)

    def get_extra_state(self) -> Any:
        return {"count": self.count, "scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.count, self.scale = state["count"], state["scale"]


def objects(out: Path, load: bool) -> None:
    """L-BFGS, float32 state of bfloat16 parameters, a learning rate in a tensor, GradScaler, extra state, a Counter."""
    torch.manual_seed(2)
    model, other, extra = nn.Linear(3, 3), nn.Linear(3, 3, dtype=torch.bfloat16), Extra()
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
    adam = torch.optim.AdamW(other.parameters(), lr=torch.tensor(0.01))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    average = torch.optim.swa_utils.AveragedModel(model)
    multi = torch.optim.lr_scheduler.MultiStepLR(adam, [2, 2, 5])
    job = job_of(
        lbfgs=lbfgs, adam=adam, model=model, other=other, extra=extra, scaler=scaler, average=average, multi=multi
    )

    def closure() -> Any:
        lbfgs.zero_grad()
        loss = model(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss

    def exact() -> None:
        for param in other.parameters():
            for key in ("exp_avg", "exp_avg_sq"):
                adam.state[param][key] = adam.state[param][key].float() + 1e-4

    def train() -> None:
        lbfgs.step(closure)
        other(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
        scaler.scale(torch.ones(1))
        adam.step()
        multi.step()
        average.update_parameters(model)

    if not load:
        train()
        exact()
        extra.count, extra.scale = 5, torch.full((5000,), 3.0)
        job.save(1)
        assert not flush(job), flush(job)
    else:
        assert job.load() == 1
        assert type(multi.milestones).__name__ == "Counter" and multi.milestones[2] == 2
        assert extra.count == 5 and extra.scale.sum() == 15000
        assert all(state["exp_avg"].dtype == torch.float32 for state in adam.state.values())
    torch.save(
        [lbfgs.state_dict(), adam.state_dict(), model.state_dict(), scaler.state_dict(), average.state_dict()],
        out / "state",
    )


def grows(out: Path, load: int = 0) -> None:
    """A dict whose tensors come and go: each save has what is there at that step."""
    state: dict[str, Any] = {"kept": torch.zeros(4)}
    job = job_of(state=state)
    versions = [
        {"kept": torch.ones(4)},
        {"kept": torch.ones(4), "new": torch.full((50_000,), 2.0), "list": [torch.ones(2, 2)]},
        {"kept": torch.ones(3), "list": [torch.ones(2, 2), torch.ones(5)]},
        {"kept": torch.ones(3, dtype=torch.int32), "list": []},
    ]
    if load:
        assert job.load() == load
        assert str(state) == str(versions[load - 1])
        return
    for step, version in enumerate(versions, start=1):
        state.clear()
        state.update(version)
        job.save(step)
        assert not flush(job), flush(job)
        cases.await_stored(step)


# -- copies


def changed(out: Path) -> None:
    """Something that is no optimizer changes a parameter while it is copied."""
    model, optimizer = simple()
    job = job_of(model=model, optimizer=optimizer)
    backward(model)
    optimizer.step()
    gate = Gate()
    job.save(1)
    assert gate.entered.wait(60)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    gate.open.set()
    assert "model/0.weight changed outside of an optimizer's step" in flush(job)
    job.save(2)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert not flush(job)
    assert job._collection.collected.early_bytes > 48


def waits(out: Path) -> None:
    """The optimizer waits for the copy, and the copy has the state from before its step."""
    model, optimizer = simple()
    job = job_of(model=model, optimizer=optimizer)
    backward(model)
    optimizer.step()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    gate = Gate()
    job.save(1)
    assert gate.entered.wait(60)
    copied = job._stager._job.copied = Waited()
    backward(model)  # changes the buffers
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    assert copied.waiting.wait(60)
    assert torch.equal(model[0].weight, before["0.weight"])
    gate.open.set()
    thread.join()
    assert not torch.equal(model[0].weight, before["0.weight"])
    assert not flush(job)
    torch.save(before, out / "before")


def damaged(out: Path) -> None:
    """Memory loses its content while it is copied, which no version of a tensor shows, and the rank reports it then."""
    model, optimizer = simple()
    job = job_of(model=model, optimizer=optimizer)
    backward(model)
    optimizer.step()
    gate = Gate()
    job.save(1)
    assert gate.entered.wait(60)
    weight = model[0].weight
    ctypes.memset(weight.data_ptr(), 0x7F, weight.nbytes)
    stager, copying = job._stager, job._stager._job
    left = threading.Thread(target=stager.stage_now, args=(0.0,), kwargs={"damaged": True})
    left.start()
    while not copying.damaged:
        time.sleep(0.001)
    gate.open.set()
    left.join()
    assert "damaged while it was copied" in copying.error


def overlapping(out: Path) -> None:
    """A save that comes during the copy of another one waits for it; both are complete."""
    model, optimizer = simple()
    job = job_of(model=model, optimizer=optimizer)
    backward(model)
    optimizer.step()
    gate = Gate()
    job.save(1)
    assert gate.entered.wait(60)
    first = job._stager._job
    first.done = Waited()
    second = threading.Thread(target=job.save, args=(2,))
    second.start()
    assert first.done.waiting.wait(60)
    gate.open.set()
    second.join()
    assert not flush(job) and not first.error


def without_optimizer(out: Path) -> None:
    """A script with no optimizer of torch has its tensors copied when ``save`` returns."""
    weights = {"w": torch.ones(100_000)}
    job = job_of(weights=weights)
    job.save(1)
    weights["w"].add_(1)
    assert not flush(job)


def unseen_step(out: Path) -> None:
    """So it is if an optimizer is registered, but its step is not seen: a replayed CUDA graph calls no hook. Without a
    save, the state of such a step is not staged when other ranks have died: nothing says whether it has changed."""
    model, optimizer = simple()
    job = job_of(model=model, optimizer=optimizer)
    backward(model)
    optimizer.step()
    job.save(1)
    assert not flush(job)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    job.save(2)
    with torch.no_grad():
        model[0].weight.data.add_(1.0)  # counted by no version either
    assert not flush(job)
    job._stager.boundary(3)
    try:
        job._stager.stage_now(0.0)
    except RuntimeError as error:
        assert "no optimizer's step was seen before the boundary of step 3" in str(error)
    else:
        raise AssertionError("a state was staged that may have changed")
    torch.save(before, out / "before")


def many(out: Path, load: bool, count: int = 10_000) -> None:
    """Many small parameters."""
    torch.manual_seed(5)
    model = nn.ParameterList([nn.Parameter(torch.randn(4, 3)) for _ in range(count)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    job = job_of(model=model, optimizer=optimizer)
    if load:
        with torch.no_grad():
            torch._foreach_zero_(list(model))
        assert job.load() == 2
    else:
        for step in (1, 2):
            torch._foreach_add_([p.grad for p in model if p.grad is not None] or [torch.zeros(1)], 0.1)
            for p in model:
                p.grad = torch.ones_like(p) * step
            optimizer.step()
            job.save(step)
        assert not flush(job)
    torch.save([[p.detach() for p in model], optimizer.state_dict()], out / "state")


# -- orders


def blocked(out: Path, layout: str, stops: int = 1, save_every: int = 2) -> None:
    """One rank stops in the fourth step, so the others block in its collective. Ends when it is killed."""
    rank = int(os.environ["RANK"])
    cases.connect(out)
    model = cases.build(layout)
    optimizer = cases.optimizer_of("adamw", model)
    progress = {"epoch": 0}
    torch.manual_seed(rank)
    job = job_of(model=model, optimizer=optimizer, progress=progress)
    for step in job.steps(until=9, save_every=save_every):
        if step.number == 4:
            cases.dump(job, out / f"{rank}.end")
            progress["epoch"] = -1
            torch.rand(5)
            (out / f"{rank}.ready").touch()
            if rank == stops:
                signal.pause()
        with step:
            cases.train(model, optimizer)
            progress["epoch"] += 1


def in_a_step(out: Path, where: str) -> None:
    """An order arrives inside of an optimizer's step, or after it but before the boundary."""
    stage.SOON_S = 0.05  # type: ignore[misc]
    model, optimizer = simple()
    job = job_of(model=model, optimizer=optimizer)
    for step in job.steps(until=2, save_every=0):
        with step:
            backward(model)
            if step.number == 2 and where == "inside":
                optimizer.register_step_post_hook(lambda *_: _until(out / "go"))
            optimizer.step()
            if step.number == 2 and where == "after":
                _until(out / "go")


def _until(path: Path) -> None:
    path.with_name("ready").touch()
    while not path.exists():
        time.sleep(0.005)


# -- the keeper


def endless(out: Path) -> None:
    """Train and save at every step until told to stop."""
    model, optimizer = simple()
    job = job_of(model=model, optimizer=optimizer)
    for step in job.steps(save_every=1):
        with step:
            backward(model)
            optimizer.step()
        if (out / "stop").exists():
            break
        time.sleep(0.001)
    flush(job)


def requested(out: Path) -> None:
    """The agent requests a save in memory at boundary 1, and a checkpoint at boundary 2."""
    from ftcore.shm import page
    from ftcore.worker import _boundary, _progress

    fd = page.create()
    _progress._opened = _progress.ProgressCounter(page.PageWriter(fd))
    _boundary._of_process = None
    reader = page.PageReader(fd)
    model, optimizer = simple()
    job = job_of(model=model, optimizer=optimizer)
    orders = reader.orders
    assert set(orders.read().abilities) == {"pause", "checkpoint", "save", "rollback"}
    orders.save_at(1, in_memory=True)
    for step in job.steps(until=3, save_every=0):
        with step:
            backward(model)
            optimizer.step()
            step.report(loss=1.5)
        if step.number < 3:
            state = orders.read()
            assert (state.saved, state.error) == (step.number, "")
            assert job._stager._job.done.is_set()
            orders.save_at(2)
    sample = reader.read()
    assert sample is not None and (sample.step, sample.loss) == (3, 1.5)


# -- slices


def slices(out: Path, load: bool, parts: int) -> None:
    """DDP over all ranks, whose optimizer is split by hand over some of them."""
    rank = int(os.environ["RANK"])
    cases.connect(out)
    model = cases.build("ddp")
    whole = torch.arange(60.0).reshape(12, 5)
    count = 12 // parts
    part = rank % parts
    mine = whole[part * count : (part + 1) * count].clone() * (0 if load else 1)
    state = {"momentum": Slice(mine, size=(12, 5), offset=(part * count, 0))}
    both = threading.Event()
    plain = stage.StateStager._prepare

    def late(stager: Any, job: Any) -> None:
        assert both.wait(60)
        plain(stager, job)

    if rank % 2:  # its thread begins when both calls were made
        stage.StateStager._prepare = late  # type: ignore[method-assign]
    job = job_of(model=model)
    job.register(state=state)
    both.set()
    if load:
        assert job.load() == 1
        assert torch.equal(mine, whole[part * count : (part + 1) * count])
        assert state["momentum"].tensor is mine
    else:
        job.save(1)
        assert not flush(job), flush(job)
        groups = job._stager._groups
        (out / f"{rank}.groups").write_text(str([groups.group, groups.groups, groups.stages, groups.persists]))
    dist.barrier()
    dist.destroy_process_group()
