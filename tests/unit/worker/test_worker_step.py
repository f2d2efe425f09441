"""What a script reports within a step."""

from typing import Any

from ftcore.worker._step import TrainingStep


class Owner:
    """Keeps what a step passes on."""

    def __init__(self) -> None:
        self.checked: list[tuple[float | None, float | None]] = []
        self.ended: list[tuple[float | None, float | None]] = []

    def next_batch(self, step: int = 0) -> Any:
        return step

    def check(self, number: int, loss: float | None, norm: float | None) -> None:
        self.checked.append((loss, norm))

    def step_failed(self, number: int, error: Exception) -> bool:
        return False

    def end_step(self, number: int, loss: float | None, grad_norm: float | None) -> None:
        self.ended.append((loss, grad_norm))


def test_loss_and_norm_may_be_reported_one_by_one() -> None:
    """The loss before the backward pass, the norm after it: each is checked once, and both are the step's."""
    owner = Owner()
    with TrainingStep(owner, 1) as step:
        step.report(loss=2)
        step.report(grad_norm=3)
    with TrainingStep(owner, 2) as step:
        step.report(loss=4.0, grad_norm=5.0)
    assert owner.checked == [(2.0, None), (None, 3.0), (4.0, 5.0)]
    assert owner.ended == [(2.0, 3.0), (4.0, 5.0)]
