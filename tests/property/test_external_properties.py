"""Whatever a policy of others answers: it is refused as nonsense, or the engine can carry it out."""

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftcore.commands import PauseWorkers, ResumeWorkers, SaveCheckpoint, StopWorkers
from ftcore.events.job import JobSpec
from ftcore.events.policy import ChainEntry, Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take
from ftcore.policies.file.config import default_chain
from ftcore.policies.options import Options
from ftcore.replay import verify
from ftcore.states.model import digest
from ftcore.testing.driver import JobDriver

NODES = st.lists(st.sampled_from(["node0", "node1", "node2", "nobody"]), max_size=2).map(tuple)
SECONDS = st.sampled_from([0.0, 1.0, 30.0, -1.0, 1e9])
ROUNDS = st.integers(0, 4)
COMMANDS = st.one_of(
    st.none(),
    st.builds(PauseWorkers, round=ROUNDS),
    st.builds(ResumeWorkers, round=ROUNDS),
    st.builds(SaveCheckpoint, round=ROUNDS, ranks=st.sampled_from([(), (0,), (99,)])),
    st.builds(StopWorkers, round=ROUNDS, grace_s=st.just(1.0)),
)
TERMS = st.builds(
    Terms,
    survivors=st.sampled_from(["stop", "park", "eat"]),
    exclude=NODES,
    quarantine=NODES,
    replace=NODES,
    want=st.integers(-1, 4),
    patience_s=st.one_of(st.none(), SECONDS),
    check=st.sampled_from(["", "suspect", "all", "?"]),
    command=COMMANDS,
    then=st.sampled_from(["verify", "continue", "pause", "resolve", "?"]),
    rollback_to=st.sampled_from([None, 5, 7]),
    tolerate=st.integers(-1, 2),
    skip=st.integers(-1, 2),
    alert=st.sampled_from(["", "look"]),
)
VERDICTS = st.one_of(
    st.builds(Pass, reason=st.sampled_from(["no", ""]), again_s=SECONDS),
    st.builds(
        Take,
        plan=st.sampled_from([*PlanKind, "pray"]),
        reason=st.just("drawn"),
        grace_s=SECONDS,
        wait_s=SECONDS,
        deadline_s=SECONDS,
        outcome=st.sampled_from(["failed", "stopped", ""]),
        exit_code=st.sampled_from([1, 5, 0, 999]),
        terms=st.one_of(st.just(Terms()), TERMS),
    ),
    st.sampled_from([None, "take"]),
)
TROUBLES = st.sampled_from(["fail", "kill", "lose", "observe", "pause", "drain", "checkpoint", "wait", "join"])


class Drawn:
    """Answers what was drawn, one after the other."""

    name = "drawn"
    doc = "Drawn."
    conditions = ("by chance",)
    kinds = ("fault", "warning", "request", "opportunity")
    needs = ()
    options = Options

    def __init__(self, verdicts: list[Any]) -> None:
        self.verdicts = verdicts

    def considers(self, incident: Any, job: Any, options: Any) -> Any:
        return self.verdicts.pop() if self.verdicts else Pass(reason="nothing more was drawn")


def happen(job: JobDriver, trouble: str) -> None:
    world = job.state.rounds.world
    living = (
        [m.node for m in world.members if job.state.membership.current(m.node, m.incarnation)]
        if world is not None
        else []
    )
    match trouble:
        case "fail" | "kill" if living:
            job.fail(living[-1], exitcode=1 if trouble == "fail" else -9)
        case "lose" if living:
            job.lose(living[-1])
        case "observe" if living:
            job.observe(living[0], "collective")
        case "pause" | "checkpoint":
            job.command(trouble)
        case "drain" if living:
            job.command("drain", living[0])
        case "wait":
            job.wait()
        case "join":
            job.join("node2")
    job.settle()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    verdicts=st.lists(VERDICTS, max_size=6),
    troubles=st.lists(TROUBLES, min_size=1, max_size=6),
    able=st.booleans(),
    wanted=st.integers(1, 2),
)
def test_no_answer_breaks_a_job(verdicts: list[Any], troubles: list[str], able: bool, wanted: int) -> None:
    """The job goes on or ends, it never comes to a standstill with nothing to wait for, and its log verifies."""
    default = default_chain()
    chain = (ChainEntry(policy="drawn", options={}, external="drawn 1.0"), *default.chain)
    spec = JobSpec(argv=("train.py",), nodes_min=wanted, nodes_max=3)
    job = JobDriver(
        spec=spec,
        policy=msgspec.structs.replace(default, chain=chain),
        abilities=tuple(Ability) if able else (),
        external={"drawn": Drawn(verdicts)},
    )
    job.start()
    job.commit(5)
    for trouble in troubles:
        if not job.ended:
            happen(job, trouble)
    if job.state.incident is not None and not job.ended and not job.state.requests.held:
        assert job.state.deadlines or job.state.orders.open, job.state.incident
    report = verify(job.events)
    assert report.ok, "\n".join(map(str, report.mismatches))
    assert report.digest == digest(job.state)
