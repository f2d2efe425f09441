"""Rounds in one process: which groups can be made again, what is a fault that a process survives."""

import os
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from ftcore.shm.rounds import ROUNDS_FD_ENV
from ftcore.worker import MemoryDamaged, _environment, _groups, _rounds
from ftcore.worker._abnormal import AbnormalStep


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> _groups._KnownGroups:
    """What is known of groups: nothing yet."""
    made = _groups._KnownGroups()
    monkeypatch.setattr(_groups, "_seen", made)
    return made


def _made(**arguments: Any) -> None:
    _groups._records_arguments(lambda *args, **kwargs: None)(**arguments)


def test_the_default_group_is_made_again_with_the_arguments_of_the_script(seen: _groups._KnownGroups) -> None:
    """Its place comes from the environment; time-out and backend stay."""
    _made(backend="gloo", timeout=timedelta(seconds=7), rank=1, world_size=2)
    assert seen.default == {"backend": "gloo", "timeout": timedelta(seconds=7)}
    assert _groups.can_park()
    _groups._records_arguments(lambda *args, **kwargs: None)("gloo", "env://", timedelta(seconds=8))
    assert seen.default == {"backend": "gloo", "timeout": timedelta(seconds=8)}


@pytest.mark.parametrize("arguments", [{"init_method": "tcp://127.0.0.1:1"}, {"store": object()}])
def test_a_group_that_is_not_from_the_environment_cannot_be_made_again(
    arguments: dict[str, Any], seen: _groups._KnownGroups
) -> None:
    """Nothing says where the next round's ranks meet."""
    _made(backend="gloo", **arguments)
    assert not _groups.can_retry()
    assert seen.default is None


def test_groups_of_a_function_of_each_round_are_made_again(seen: _groups._KnownGroups) -> None:
    """Any other group is held by something that would go on to use it."""
    helper = _groups._records_sockets(lambda *args, **kwargs: "group")
    with _groups.made_again():
        helper(2, 0, [0, 1])
        with _groups.made_again():
            helper(2, 0, [0, 1])
        helper(2, 0, global_ranks_in_group=[0, 1])
        _made(backend="gloo")
    assert (_groups.can_park(), seen.default) == (True, None)
    helper(2, 0, [])  # the default group
    assert _groups.can_park()
    helper(2, 0, [0, 1])
    assert not _groups.can_retry()


class _Model:
    """What is used of a DDP model."""

    process_group: Any = None

    def _update_process_group(self, group: Any) -> None:
        self.process_group = group


def test_a_model_outside_of_such_a_function_can_retry_but_not_park() -> None:
    """A new process would make its model with collectives that the others do not make."""
    make = _groups._keeps_group(lambda model: None)
    outside, built = _Model(), _Model()
    with _groups.made_again():
        make(built)
    assert _groups.can_park()
    make(outside)
    assert (_groups.can_retry(), _groups.can_park()) == (True, False)
    del outside
    assert _groups.can_park()


def _caused(cause: Exception) -> Exception:
    error = RuntimeError("the step failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryDamaged("a parameter"), "uce"),
        (AbnormalStep("norm: 4", 4.0, 3.0), "norm"),
        (dist.DistBackendError("NCCL error"), "collective"),
        (RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer"), "collective"),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), "collective"),
        (_caused(dist.DistNetworkError("refused")), "collective"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ""),
        (RuntimeError("DataLoader timed out after 5 seconds"), ""),
        (ValueError("gloo"), ""),
    ],
)
def test_which_errors_leave_a_process_alive(error: Exception, kind: str) -> None:
    """An error of the script does not: it would come again."""
    assert _rounds.kind_of(error) == kind


def test_a_process_becomes_one_of_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of ftcore and torchrun are those of the round; the script's own stay."""
    before = {"RANK": "1", "FTCORE_ROUND": "1", "FTCORE_SKIP": "[]", ROUNDS_FD_ENV: "9", "OWN": "a"}
    monkeypatch.setattr(os, "environ", before)
    fds = [os.open(os.devnull, os.O_WRONLY) for _ in range(3)]
    moved: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "dup2", lambda fd, number: moved.append((fd, number)))
    env = {"RANK": "1", "MASTER_PORT": "7", "FTCORE_ROUND": "2", "OWN": "b", "FTCORE_TOLERATED": "[3]"}
    page = _rounds.become(_rounds.NextRound(env, tuple(fds)))
    assert moved == [(fds[0], 1), (fds[1], 2)]
    assert os.environ["FTCORE_PAGE_FD"] == str(page) == str(fds[2])
    assert (os.environ["FTCORE_ROUND"], os.environ["MASTER_PORT"], os.environ["OWN"]) == ("2", "7", "a")
    assert ROUNDS_FD_ENV in os.environ
    assert "FTCORE_SKIP" not in os.environ
    assert _environment.tolerated() == {3}
    os.close(page)
