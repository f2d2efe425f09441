"""Jobs simulated message by message: nothing happens that must never happen, and checkers would notice if it did."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from ftcore.engine import agent as core
from ftcore.sim import agents, masters
from ftcore.sim.__main__ import main
from ftcore.sim.options import draw
from ftcore.sim.protocol import Result, run_protocol
from ftcore.states.fold import base

SEEDS = Path(__file__).with_name("seeds.txt")
PAST = [int(line.split()[0]) for line in SEEDS.read_text().splitlines() if line and not line.startswith("#")]
CHUNK = 50
CHUNKS = 6


def well(seed: int, **how: int) -> Result:
    result = run_protocol(seed, **how)
    assert not result.violation, f"{result.violation}\nsee it: python -m ftcore.sim --seed {seed} --trace"
    return result


@pytest.mark.parametrize("first", range(0, CHUNK * CHUNKS, CHUNK))
def test_swarm(first: int) -> None:
    """Whatever the seed breaks, no checker complains, and the job trains on or ends with a reason."""
    results = [well(seed) for seed in range(first, first + CHUNK)]
    assert {result.outcome for result in results} >= {"succeeded", "trains"}
    assert sum(result.incidents for result in results) > CHUNK / 2
    assert sum(result.terms for result in results) > 2 * CHUNK


@pytest.mark.parametrize("seed", PAST)
def test_past_failures(seed: int) -> None:
    """What went wrong once does so no more."""
    well(seed)


def test_fifty_nodes() -> None:
    """The largest job that is simulated message by message comes to rest as well."""
    assert well(3, nodes=50).events > 100


def test_a_seed_is_the_whole_story() -> None:
    """The same seed gives the same trace, also in a process where sets have another order; other seeds give others."""
    code = "from ftcore.sim.protocol import run_protocol; print(*(run_protocol(seed).digest for seed in range(12)))"
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [run_protocol(seed).digest for seed in range(12)]
    assert len(set(done.stdout.split())) == 12


def test_the_command_shows_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m ftcore.sim`` prints what came of a seed and, if asked, all that happened."""
    assert main(["--seed", "2", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "job.submitted" in out
    assert "seed 2:" in out


def speculative_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = masters.SimMaster._append

    def early(self, batch, *rest) -> None:
        for event in batch:
            if event.id.source != "master":
                self._durable[event.id.source] = (event.id.incarnation, event.id.n)
        commit(self, batch, *rest)

    monkeypatch.setattr(masters.SimMaster, "_append", early)


def orders_before_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = masters.SimMaster._append

    def early(self, batch, *rest) -> None:
        for (node, _), orders in masters.answers_to(self.state, batch).orders.items():
            if node in self._sessions:
                self._sessions[node].order(orders)
        commit(self, batch, *rest)

    monkeypatch.setattr(masters.SimMaster, "_append", early)


def no_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    obey = core.AgentCore.obey

    def gullible(self, order):
        self._effects.clear()
        if hasattr(order.command, "round"):
            self.round = min(self.round, order.command.round - 1)
        return obey(self, order)

    monkeypatch.setattr(core.AgentCore, "obey", gullible)


def workers_survive_their_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_running(self):
        self._starting, self.ranks = None, None
        return ()

    monkeypatch.setattr(agents.SimAgent, "_end_ranks", leave_running)


def impatient_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "due", lambda deadline, led_since, lease_s: deadline)


def forgetful_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = base.answered
    calls = []

    def now_and_then(*args, **options) -> None:
        calls.append(1)
        if len(calls) % 7:
            answered(*args, **options)

    monkeypatch.setattr("ftcore.states.fold.nodes.answered", now_and_then)


def silent_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.AgentCore, "unstartable", lambda self, start, error: [])
    monkeypatch.setattr(core.AgentCore, "exited", lambda self, ended, pages: [])


WRITES = {"faults": ("stream_break", "store_slow", "master_dies_at_write", "master_kill"), "every_s": 0.3}
AWAY = {"faults": ("master_kill", "store_down"), "every_s": 3.0, "step_s": 0.5, "total": 10_000, "ambiguous": 0.0}


@pytest.mark.parametrize(
    ("mutation", "checker", "focus"),
    [
        (speculative_acks, "AcknowledgedFactsStand", WRITES),
        (orders_before_durable, "EffectsFollowTheLog", {}),
        (no_fencing, "EffectsFollowTheLog", {}),
        (workers_survive_their_stop, "OneRoundTrains", {}),
        (impatient_master, "OwnFaultsStopNothing", AWAY),
        (forgetful_fold, "ReplayAgrees", {}),
        (silent_agents, "Liveness", {}),
    ],
)
def test_a_planted_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch,
    mutation: Callable[[pytest.MonkeyPatch], None],
    checker: str,
    focus: dict[str, object],
) -> None:
    """Each checker notices, within a few hundred schedules, the mistake that it is there for."""
    mutation(monkeypatch)
    found = (run_protocol(seed, options=attrs.evolve(draw(seed), **focus)).violation for seed in range(300))
    assert any(violation.startswith(checker) for violation in found)
