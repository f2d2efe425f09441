"""Tests of the steps that the hooks count by themselves."""

import os
from collections.abc import Iterator

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from ftcore.shm import page
from ftcore.worker import _boundary, _hooks, _progress


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[page.PageReader]:
    """The agent's side of this process's page."""
    fd = page.create()
    monkeypatch.setattr(_progress, "_opened", _progress.ProgressCounter(page.PageWriter(fd)))
    monkeypatch.setattr(_boundary, "_of_process", None)
    made = page.PageReader(fd)
    yield made
    made.close()
    os.close(fd)


def stepped(model: torch.nn.Module, optimizer: torch.optim.Optimizer, times: int) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    optimizer.zero_grad()


def made(kind: type[torch.optim.Optimizer]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(4, 1)
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    optimizer.register_step_post_hook(_hooks._StepCounter().stepped)
    return model, optimizer


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_step_that_makes_the_state_for_a_checkpoint_is_not_counted(
    reader: page.PageReader, kind: type[torch.optim.Optimizer]
) -> None:
    """``torch.distributed.checkpoint`` steps an optimizer without state, SGD at each save."""
    model, optimizer = made(kind)
    stepped(model, optimizer, 3)
    state = get_optimizer_state_dict(model, optimizer)
    sample = reader.read()
    assert sample is not None and sample.steps == 3
    model, resumed = made(kind)
    set_optimizer_state_dict(model, resumed, state)
    sample = reader.read()
    assert sample is not None and sample.steps == 3
    stepped(model, resumed, 1)
    sample = reader.read()
    assert sample is not None and sample.steps == 4
    if kind is torch.optim.AdamW:
        assert (sample.step, sample.absolute) == (4, True)
