"""What ``ftrun`` takes from the environment of a task."""

import pytest
from ftcore_slurm.environment import flags, job_name
from ftcore_slurm.run import flags_of_the_allocation

from ftcore.errors import UsageError

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "my llm!",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NODEID": "2",
    "SLURMD_NODENAME": "n3",
    "SLURM_JOB_NODELIST": "n[1-9]",
}
FLAGS = {"job": "my-llm-7", "nnodes": "4", "node-rank": "2", "node-id": "n3", "platform": "slurm:7"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, FLAGS),
        ({"FTCORE_SLURM_NODES": "3"}, FLAGS | {"nnodes": "3"}),
        ({"SLURM_GPUS_ON_NODE": "8"}, FLAGS | {"nproc-per-node": "8"}),
        ({"FTCORE_JOB": "mine"}, FLAGS | {"job": "mine"}),
        (
            {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"},
            FLAGS | {"job": "my-llm-5_3", "platform": "slurm:5_3"},
        ),
        ({"FTCORE_SLURM_JOB": "6", "FTCORE_JOB": "of-6", "FTCORE_SLURM_NODES": "9"}, FLAGS),
        (
            {"SLURM_TOPOLOGY_ADDR": "s0.s4.n3", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"},
            FLAGS | {"node-labels": "switch=s4,switch2=s0"},
        ),
        ({"FTCORE_SLURM_REPLACEMENT": "1"}, {}),
    ],
    ids=["plain", "spares", "gpus", "named", "array", "inherited", "topology", "replacement"],
)
def test_a_task_has_flags(changes: dict[str, str], expected: dict[str, str]) -> None:
    assert flags(STEP | changes) == expected


def test_a_batch_script_and_a_login_shell_have_none() -> None:
    """There ``ftrun`` is what it always is."""
    assert flags({}) == {}
    assert flags({name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}) == {}
    assert flags(STEP | {"SLURM_PTY_PORT": "1"}) == {} == flags(STEP | {"SLURM_STEP_ID": "4294967290"})
    assert job_name({"SLURM_JOB_ID": "9"}) == "slurm-9"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_STEP_NUM_TASKS": "32"}, "32 tasks on 4 nodes"),
        ({"FTCORE_SLURM_NODES": "5"}, "the step has 4 nodes"),
        ({"SLURM_HET_SIZE": "2"}, "heterogeneous jobs"),
    ],
)
def test_a_step_that_cannot_work_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        flags(STEP | changes)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["train.py", "--job", "x"], []),
        (["--policy", "p.yaml", "train.py", "--store", "x"], []),
        (["-m", "my.trainer", "--nnodes", "3"], []),
        (["--policy=p.yaml", "train.py", "--job=x"], []),
        (["--policy", "p.yaml", "--job", "x", "train.py"], ["--job"]),
        (["--node_rank=3", "--store", "etcd://a:1", "-m", "my.trainer"], ["--node-rank", "--store"]),
    ],
)
def test_flags_that_the_allocation_decides_are_found(command: list[str], expected: list[str]) -> None:
    """Before the script; behind it they are the script's own."""
    assert flags_of_the_allocation(command) == expected
