"""The global batch of a real job whose world shrinks and grows."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from harness import JOBS, PATIENCE_S, Ftrun, ftrun, wait_until
from test_ftrun_checkpoints import kill_with_keeper

STEPS, MICRO = 18, 2
ARGS = (str(STEPS), str(MICRO))


def curve(where: Path) -> dict[int, tuple[float, int, int]]:
    """By step: the loss over the global batch, the micro-batches of rank 0, and the number of ranks."""
    lines = (line.split() for line in (where / "losses").read_text().splitlines())
    return {int(step): (float(loss), int(count), int(ranks)) for step, loss, count, ranks in lines}


def alone(where: Path) -> dict[int, tuple[float, int, int]]:
    """The curve of one process outside of ftrun."""
    where.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("FTCORE_")}
    command = [sys.executable, str(JOBS / "batches.py"), *ARGS]
    subprocess.run(command, cwd=where, env=env, check=True, timeout=PATIENCE_S)
    return curve(where)


def samples(where: Path) -> dict[int, list[int]]:
    """By step: the samples that its last round used, over all ranks."""
    found: dict[int, dict[int, list[int]]] = {}
    for path in where.glob("samples.*"):
        for line in path.read_text().splitlines():
            round_, step, *numbers = map(int, line.split())
            found.setdefault(step, {}).setdefault(round_, []).extend(numbers)
    return {step: sorted(rounds[max(rounds)]) for step, rounds in found.items()}


def until(job: Ftrun, step: int) -> None:
    """Let rank 0 train until it waits behind a step."""
    job.drop("limit", str(step))
    wait_until(lambda: (job.cwd / "held").exists() and (job.cwd / "held").read_text() == str(step), f"step {step}")


def test_a_smaller_world_keeps_the_loss_curve(tmp_path: Path) -> None:
    """Four ranks, then three (which do not divide the batch), then four: the losses of one process that computes every
    sample; in four epochs each sample is used four times. The log names the batch of each world."""
    expected = alone(tmp_path / "alone")
    timing = {"join_window_s": 120.0, "node_lease_s": 4.0}
    with ftrun(tmp_path, timing=timing) as job:
        job.always(
            0,
            "while step > int(open('limit').read()):\n"
            " open('.held', 'w').write(str(step - 1)); __import__('os').replace('.held', 'held'); time.sleep(0.002)",
        )
        job.drop("limit", "0")
        flags = ["--nnodes=3:4", "--global-batch=20", f"--micro-batch={MICRO}"]
        runs = {
            node: job.start(*flags, f"--node-id={node}", script="batches.py", preload=False, args=ARGS)
            for node in "abcd"
        }
        until(job, 6)
        job.stepped(1, nodes=4)
        kill_with_keeper(job, "d")
        runs["d"].end()
        until(job, 12)
        last = job.events.seen[-1].seq
        runs["d"] = job.start(*flags, "--node-id=d", script="batches.py", preload=False, args=ARGS)
        for node in "abc":
            job.wait("order.obeyed", last, node=node)  # the boundary is found: that of the step in progress
        job.drop("limit", "13")
        job.wait("world.formed", nodes=4, round=3)
        job.drop("limit", str(STEPS))
        assert [run.end() for run in runs.values()] == [0] * 4
        formed = [event.data for event in job.of("world.formed")]
        assert [(data.size, data.batch.size, data.batch.least, data.batch.most) for data in formed] == [
            (4, 20, 4, 6),
            (3, 20, 6, 8),
            (4, 20, 4, 6),
        ]
        assert re.search("3 nodes, 3 ranks, resumes from .*, global batch 20: 6 to 8 per rank", runs["a"].stderr())
        found = curve(job.cwd)
        assert {step: loss for step, (loss, _, _) in found.items()} == pytest.approx(
            {step: loss for step, (loss, _, _) in expected.items()}, rel=1e-9
        )
        used = samples(job.cwd)
        assert used == samples(tmp_path / "alone")
        assert Counter(number for step in used.values() for number in step) == dict.fromkeys(range(90), 4)
        told = json.loads(job.ftctl("--job", job.job, "samples", "--format", "json").stdout)
        assert [(each["used"], each["left_out"], each["to_come"]) for each in told["epochs"]] == [(90, 0, 0)] * 4
        assert not told["discrepancies"]
        assert [ranks for _, _, ranks in found.values()] == [4] * 6 + [3] * 7 + [4] * 5
        assert found[1][1] == 3 and found[10][1] == 4
        assert expected[1][1:] == (10, 1)
        assert expected[STEPS][0] < expected[1][0] / 2, "it must learn something for the curves to differ"
