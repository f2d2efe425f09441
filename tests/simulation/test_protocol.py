"""The protocol simulator: no invariant is violated."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from reproduced import assert_reproduced

from ftcore.sim.__main__ import main
from ftcore.sim.protocol.options import draw
from ftcore.sim.protocol.simulation import Result, Simulation, collect, collecting_between, run_protocol

SEEDS = Path(__file__).with_name("seeds.txt")
PAST = [int(line.split()[0]) for line in SEEDS.read_text().splitlines() if line and not line.startswith("#")]
CHUNK = 50
CHUNKS = 4


@contextlib.contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Context manager: an error says how to see it again."""
    try:
        yield
    except Exception as error:
        error.add_note(f"reproduce: python -m ftcore.sim --seed {seed} --trace")
        raise


def well(seed: int, **how: int) -> Result:
    result = run_protocol(seed, **how)
    with reproducible(seed):
        assert not result.violation, result.violation
    return result


@pytest.mark.parametrize("first", range(0, CHUNK * CHUNKS, CHUNK))
def test_swarm(first: int) -> None:
    """With any faults, no checker fails, and the job trains or ends with a reason.

    What-if with the chain that was used reproduces each log: its incidents have the same policies, duration and loss.
    """
    results, compared = [], 0
    with collecting_between():
        for seed in range(first, first + CHUNK):
            simulation = Simulation(draw(seed))
            with reproducible(seed):
                simulation.run()
                compared += len(assert_reproduced(simulation.store.events))
            results.append(simulation.result())
            del simulation  # else the next collection does not find it
            collect()
    assert {result.outcome for result in results} >= {"succeeded", "trains"}
    assert sum(result.incidents for result in results) > CHUNK / 2
    assert sum(result.terms for result in results) > 1.5 * CHUNK
    assert compared > CHUNK / 2


@pytest.mark.parametrize("seed", PAST)
def test_past_failures(seed: int) -> None:
    """Seeds that once failed pass."""
    well(seed)


def test_fifty_nodes() -> None:
    """The largest simulated job passes too."""
    assert well(3, nodes=50).events > 100


def test_a_seed_is_the_whole_story() -> None:
    """The same seed gives the same trace, also in a process where sets have another order; other seeds give others."""
    module = "ftcore.sim.protocol.simulation"
    code = f"from {module} import run_protocol; print(*(run_protocol(seed).digest for seed in range(12)))"
    here = [run_protocol(seed).digest for seed in range(12)]
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == here
    assert len(set(here)) == 12


def test_the_command_shows_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m ftcore.sim`` prints the result of a seed and, on request, the trace."""
    assert main(["--seed", "2", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "job.submitted" in out
    assert "seed 2:" in out
