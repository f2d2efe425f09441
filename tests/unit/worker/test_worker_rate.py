"""The learning rate in the steps of optimizers: scaled while they step, the script's own before and after."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch.optim import optimizer as optimizers

from ftcore.worker import _rate
from ftcore.worker._rate import RateScale

HALF = {"FTCORE_LR_FACTOR": "0.5"}


@pytest.fixture
def scale() -> Iterator[RateScale]:
    """A factor of 0.5 in the steps of all optimizers."""
    made = RateScale()
    made.factor = 0.5
    handles = (
        optimizers.register_optimizer_step_pre_hook(made.begins),
        optimizers.register_optimizer_step_post_hook(made.ended),
    )
    yield made
    for handle in handles:
        handle.remove()


def trained(rate: float | torch.Tensor, steps: int = 5, schedule: bool = True) -> tuple[list[float], list[float]]:
    """The weights after some steps, and the rates that the script saw."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10) if schedule else None
    rates = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return [float(each) for each in model.weight.detach().flatten()], rates


def test_steps_are_those_of_the_scaled_rate_and_the_script_sees_its_own(scale: RateScale) -> None:
    """Under a scheduler that computes each rate from the one before."""
    scale.factor = 1.0
    plain, rates = trained(0.1)
    half, _ = trained(0.05)
    scale.factor = 0.5
    found, seen = trained(0.1)
    assert found == pytest.approx(half, abs=1e-6) and found != pytest.approx(plain, abs=1e-6)
    assert seen == rates


def test_a_rate_that_is_a_tensor_stays_the_same_tensor(scale: RateScale) -> None:
    """A captured graph refers to it."""
    rate = torch.tensor(0.1)
    found, seen = trained(rate, schedule=False)
    scale.factor = 1.0
    assert found == pytest.approx(trained(0.05, schedule=False)[0], abs=1e-6)
    assert seen == pytest.approx([0.1] * 5)


class Outer(torch.optim.Optimizer):
    """Steps another optimizer, with the same groups."""

    def __init__(self, inner: torch.optim.Optimizer, fails: int = 0) -> None:
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups
        self.inner, self.fails = inner, fails

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no")
        self.inner.step()


def stepped(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> float:
    """How far a step with a gradient of one goes."""
    parameter.grad = torch.ones(1)
    before = float(parameter.detach())
    optimizer.step()
    return before - float(parameter.detach())


def test_an_optimizer_inside_of_another_is_scaled_once(scale: RateScale) -> None:
    """And after a step that raised an error, the rate is the script's own again, then scaled once."""
    parameter = torch.nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD([parameter], lr=0.2)
    outer = Outer(inner, fails=1)
    with pytest.raises(RuntimeError):
        outer.step()
    assert stepped(outer, parameter) == pytest.approx(0.1)
    assert inner.param_groups[0]["lr"] == 0.2


def test_a_round_without_a_factor_registers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later round may have one, in the same process, and the one after it another."""
    before = len(optimizers._global_optimizer_pre_hooks)
    monkeypatch.delenv("FTCORE_LR_FACTOR", raising=False)
    monkeypatch.setattr(_rate, "_scale", RateScale())
    monkeypatch.setattr(_rate, "_hooked", False)
    handles: list[tuple[object, ...]] = []
    plain = _rate._register
    monkeypatch.setattr(_rate, "_register", lambda wrap: handles.append(plain(wrap)) or handles[-1])
    _rate.install()
    assert len(optimizers._global_optimizer_pre_hooks) == before
    for factor in ("0.5", "0.25"):
        monkeypatch.setenv("FTCORE_LR_FACTOR", factor)
        _rate.install()
    parameter = torch.nn.Parameter(torch.ones(1))
    try:
        assert stepped(torch.optim.SGD([parameter], lr=0.2), parameter) == pytest.approx(0.05)
        assert len(handles) == 1
    finally:
        for handle in handles[0]:
            handle.remove()  # type: ignore[attr-defined]


COMPILED = """
import torch
from ftcore.worker import _hooks
if "early" in __import__("sys").argv:
    import torch._dynamo
_hooks.install()
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=torch.tensor(0.2), foreach=True)
step = torch.compile(optimizer.step, backend="eager")
parameter.grad = torch.ones(4)
step()
print(round(float(parameter[0].detach()), 4), round(float(optimizer.param_groups[0]["lr"]), 4))
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_compiled_step_is_scaled(when: str) -> None:
    """Whenever the compiler is imported."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, when], env={**os.environ, **HALF}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["0.9", "0.2"], done.stderr
