"""Recovery without restarting: processes stay through faults, and the weights are those of an undisturbed run."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, kill
from in_place_runs import (
    COLLECTIVE,
    CUT,
    DAMAGED,
    GIL_HELD,
    KILLED,
    ONE_NODE,
    STOPPED,
    TWO_NODES,
    XID,
    ends,
    pids,
    remedies,
    start,
    undisturbed_weights,
)

NODES = pytest.mark.parametrize(
    "nodes",
    [pytest.param(ONE_NODE, id="one-node", marks=pytest.mark.long), pytest.param(TWO_NODES, id="two-nodes")],
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The weights of a run to which nothing happens."""
    return undisturbed_weights(tmp_path_factory.mktemp("undisturbed"))


@NODES
def test_a_step_is_computed_again_in_the_same_processes(
    job: Ftrun, nodes: tuple[str, ...], undisturbed: set[str]
) -> None:
    """At every place of a step, a failed collective or damaged memory of either rank; no process ends. Once all
    connections are cut, so that the backward passes of both ranks fail; once the driver reports the memory error, too.
    """
    faults = {
        0: {"data 6": COLLECTIVE, "forward 14": DAMAGED, "optimizer 22": XID + DAMAGED},
        1: {"backward 10": COLLECTIVE, "backward 26": CUT, "evaluation 35": COLLECTIVE},
    }
    run = start(job, *nodes, faults=faults)
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert set(remedies(job)) == {"step_retry"}
    assert [pids(job, round_) for round_ in range(1, 8)] == [pids(job, 1)] * 7
    assert {event.data.steps_lost for event in job.of("incident.resolved")} == {0}


def test_poisoned_batches_are_left_out_in_the_same_processes(tmp_path: Path) -> None:
    """A loss that is not a number: back to a checkpoint, and on without the batches, as if they had never been."""
    with ftrun(tmp_path / "lacking") as job:
        job.drop("batches", json.dumps({"lacks": list(range(21, 29))}))
        run = start(job, *ONE_NODE, mode=("built", "persists"), faults={})
        assert run.end() == 0
        without = {digest for _, digest in ends(run).values()}
    with ftrun(tmp_path / "poisoned") as job:
        job.drop("batches", json.dumps({"poisoned": [25, 26]}))
        job.drop(
            "back.yaml", "version: 1\nchain:\n- rollback_and_skip: {before: 4, skip: 8}\n- process_restart\n- stop\n"
        )
        flags = (*ONE_NODE, "--checkpoints", "saved", "--policy", "back.yaml")
        run = start(job, *flags, mode=("built", "persists"), faults={})
        assert run.end() == 0
        assert job.of("job.rolled_back")[0].data.step == 20
        assert remedies(job) == ["rollback_and_skip"]
        assert pids(job, 1) == pids(job, 2) == [ends(run)[rank][0] for rank in (0, 1)]
        assert [event.data.batches for event in job.of("batches.skipped")] == [8]
        assert {digest for _, digest in ends(run).values()} == without
        assert len(without) == 1


LOWER = """
version: 1
job: {checkpoints: {kept: 30}}
chain:
- rollback_and_skip: {before: 60, skip: 5, max_rollbacks: 1}
- lower_learning_rate: {before: 60, factor: 0.25}
- process_restart
- stop
"""


def test_a_lower_learning_rate_helps_where_other_data_does_not(tmp_path: Path) -> None:
    """The loss diverges again after a rollback; with a quarter of the rate it does not. The processes stay, the script
    sees the rate that it has set, and a process that is started again later has the lower one, too."""
    with ftrun(tmp_path) as job:
        job.drop("policy.yaml", LOWER)
        flags = (*ONE_NODE, "--checkpoints", "saved", "--policy", "policy.yaml")
        run = job.start(*flags, script="diverges.py", preload=False, args=("400",))
        lowered = job.wait("rate.lowered")
        resolved = job.wait("incident.resolved", lowered.seq, policy="lower_learning_rate")
        job.wait("checkpoint.committed", resolved.seq, step=200)
        kill(pids(job, 3)[0])
        assert run.end() == 0
        assert remedies(job) == ["rollback_and_skip", "lower_learning_rate", "process_restart"]
        assert (lowered.data.before, lowered.data.factor) == (1.0, 0.25)
        assert pids(job, 1) == pids(job, 2) == pids(job, 3)
        found = re.findall(r"ends with rate (\S+) and loss (\S+)", run.stdout())
        assert len(found) == 2
        assert all(rate == "1.4" and float(loss) < 2 for rate, loss in found)


@NODES
def test_only_the_dead_process_is_started_again(job: Ftrun, nodes: tuple[str, ...], undisturbed: set[str]) -> None:
    """Each rank dies once, the second time while the first recovery is in its last round; the other one stays."""
    run = start(job, *nodes, faults={0: {"backward 12": KILLED}, 1: {"forward 25": KILLED}})
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert len(remedies(job)) == 2
    assert set(remedies(job)) <= {"hot_swap", "step_retry"}  # a failed collective may be reported before the death
    first, second, third = (pids(job, round_) for round_ in (1, 2, 3))
    assert first[1] == second[1]
    assert first[0] != second[0] == third[0]
    assert second[1] != third[1]
    assert {event.data.source for event in job.of("state.loaded") if event.data.round > 1} <= {"memory", "replica"}


@pytest.mark.parametrize("code", [STOPPED, GIL_HELD], ids=["stopped", "gil-held"])
def test_a_process_that_does_nothing_any_more_is_swapped(tmp_path: Path, undisturbed: set[str], code: str) -> None:
    """It hangs, and cannot leave its round, while the other one waits in a collective, which nothing of torch would
    end."""
    with ftrun(tmp_path, timing={"hang_look_s": 0.5, "hang_idle_s": 1.0, "hang_busy_s": 60.0}) as job:
        run = start(job, *ONE_NODE, faults={1: {"backward 15": code}})
        assert run.end() == 0
        assert {digest for _, digest in ends(run).values()} == undisturbed
        assert remedies(job) == ["hot_swap"]
        assert pids(job, 1)[0] == pids(job, 2)[0]


def test_faults_at_once_and_in_the_middle_of_a_recovery(job: Ftrun, undisturbed: set[str]) -> None:
    """A rank is killed in the round of a retry; a collective fails while groups are set up for the one after it."""
    faults = {
        0: {"forward 12": COLLECTIVE, "forward 24": COLLECTIVE, "round 3": COLLECTIVE},
        1: {"backward 12": KILLED},
    }
    run = start(job, *ONE_NODE, faults=faults)
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert pids(job, 1)[0] == ends(run)[0][0]


def test_a_fault_in_the_middle_of_an_optimizers_step(job: Ftrun, undisturbed: set[str]) -> None:
    """One rank has changed half of its parameters, the other one goes on to the next step: both go back."""
    faults = {0: {"inside 12": DAMAGED, "inside 24": KILLED}, 1: {"inside 18": COLLECTIVE, "inside 30": DAMAGED}}
    run = start(job, *TWO_NODES, faults=faults)
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert set(remedies(job)) <= {"hot_swap", "step_retry"}
    assert pids(job, 1)[1] == ends(run)[1][0]
    assert {event.data.source for event in job.of("state.loaded") if event.data.round > 1} <= {"memory", "replica"}


def test_both_ranks_at_the_same_step(job: Ftrun, undisturbed: set[str]) -> None:
    """Damaged memory of both, a collective that fails on both, and the death of both: nothing is computed twice but
    that step."""
    faults = {"forward 12": DAMAGED, "backward 20": COLLECTIVE, "backward 30": KILLED}
    copied = "time.sleep(0.2)"  # what is copied while the memory of both ranks is damaged counts for neither
    same = {place: f"meet({number}); {copied}; {fault}" for number, (place, fault) in enumerate(faults.items())}
    run = start(job, *ONE_NODE, faults={0: same, 1: same})
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert pids(job, 1) == pids(job, 2) == pids(job, 3)
    assert {event.data.steps_lost for event in job.of("incident.resolved")} == {0}


SPENT = """
version: 1
chain:
  - step_retry: {max_retries: 1, per_node: 1}
  - process_restart
  - stop
"""


def test_spent_retries_are_left_to_the_next_policies(job: Ftrun, undisturbed: set[str]) -> None:
    """Faults at different steps are none that come again, but use up the budget."""
    job.drop("policy.yaml", SPENT)
    faults = {0: {"forward 12": COLLECTIVE}, 1: {"backward 24": COLLECTIVE}}
    run = start(job, *ONE_NODE, "--policy", "policy.yaml", faults=faults)
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert remedies(job) == ["step_retry", "process_restart"]
    spent = [event.data.reason for event in job.of("policy.considered") if event.data.policy == "step_retry"]
    assert any(reason.startswith("budget spent: 1 of 1 retries") for reason in spent)


def test_a_fault_that_comes_again_is_left_to_the_next_policies(job: Ftrun, undisturbed: set[str]) -> None:
    """A retry that meets the same fault at the same step is not made again: the processes are started again."""
    run = start(job, *ONE_NODE, faults={0: {"forward 12": [COLLECTIVE] * 2}})
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert remedies(job) == ["process_restart"]
    assert pids(job, 1) == pids(job, 2) != pids(job, 3)


def test_a_script_that_handles_all_errors_leaves_its_round_too(job: Ftrun, undisturbed: set[str]) -> None:
    """The end of the step is reached without an error; the order to leave is seen there."""
    run = start(job, *ONE_NODE, mode=("built", "catches"), faults={0: {"backward 12": KILLED}})
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert "handled: " in run.stdout()
    assert remedies(job) == ["hot_swap"]
    assert pids(job, 1)[1] == pids(job, 2)[1]


def test_a_step_whose_backward_pass_failed_is_computed_again_although_its_optimizer_has_stepped(
    job: Ftrun, undisturbed: set[str]
) -> None:
    """Its gradients are those of one rank alone: a state that must not be saved, and never becomes the job's."""
    faults = {0: {"backward 12": CUT}, 1: {"backward 24": KILLED}}
    run = start(job, *ONE_NODE, mode=("built", "handles"), faults=faults)
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert run.stdout().count("handled: ") >= 3
    assert remedies(job)[0] == "step_retry"
    assert pids(job, 1)[0] == ends(run)[0][0]


def test_a_model_made_outside_of_each_round_retries_and_is_restarted_for_a_dead_rank(
    job: Ftrun, undisturbed: set[str]
) -> None:
    """A new process would make its DDP model with collectives in which the other one takes no part."""
    faults = {0: {"forward 12": COLLECTIVE}, 1: {"backward 24": KILLED}}
    run = start(job, *ONE_NODE, mode=("outside",), faults=faults)
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert remedies(job) == ["step_retry", "process_restart"]
    assert pids(job, 1) == pids(job, 2)


TRE = """
version: 1
chain:
  - recompute_step: {global_norm_spike_threshold: 5.0}
  - process_restart
  - stop
"""


def test_an_abnormal_step_is_computed_again_once_and_recorded(job: Ftrun, undisturbed: set[str]) -> None:
    """One is normal when it is computed again, one is not and is accepted; a job that is started again keeps both."""
    job.drop("policy.yaml", TRE)
    for number, times in ((12, 1), (24, 2)):
        job.drop(f"norm.{number}", "x" * times)
    run = start(job, *ONE_NODE, "--policy", "policy.yaml", "--checkpoints", "saved", faults={})
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert set(remedies(job)) == {"recompute_step"}  # the second one may be part of the first incident
    assert [pids(job, round_) for round_ in (1, 2, 3)] == [pids(job, 1)] * 3
    recorded = json.loads((job.cwd / "saved" / "abnormal_global_norm.json").read_text())
    assert {step: len(norms) for step, norms in recorded.items()} == {"12": 1, "24": 2}
    assert all(norm >= 5.0 for norms in recorded.values() for norm in norms)
    again = start(job, *ONE_NODE, "--policy", "policy.yaml", "--checkpoints", "saved", faults={})
    assert again.end() == 0
    assert json.loads((job.cwd / "saved" / "abnormal_global_norm.json").read_text()) == recorded


SKIPS = """
version: 1
chain:
  - skip_batch: {global_norm_spike_threshold: 5.0}
  - process_restart
  - stop
"""


@pytest.mark.parametrize("found", ["in the norm", "in the loss of one rank"])
def test_a_batch_that_is_abnormal_is_left_out(job: Ftrun, found: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also two in a row; nothing is loaded from storage, and the weights are those of a run whose data lacks them.

    A rank whose loss is not a number leaves before its backward pass, in which the other one waits for it.
    """
    mode, only = (("built", "early"), 1) if found == "in the loss of one rank" else (("built",), None)
    bad = [12, 24, 25]
    with ftrun(tmp_path_factory.mktemp("lacking")) as lacking:
        lacking.drop("batches", json.dumps({"lacks": bad}))
        run = start(lacking, *ONE_NODE, faults={})
        assert run.end() == 0
        expected = {digest for _, digest in ends(run).values()}
    job.drop("policy.yaml", SKIPS)
    job.drop("batches", json.dumps({"poisoned": bad, "only": only}))
    run = start(job, *TWO_NODES, "--policy", "policy.yaml", "--checkpoints", "saved", mode=mode, faults={})
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == expected
    assert [(event.data.step, event.data.amount) for event in job.of("data.skipped")] == [(11, 1), (22, 1), (22, 1)]
    assert [event.data.policy for event in job.of("policy.considered") if event.data.verdict == "take"] == [
        "skip_batch"
    ] * 3
    assert [pids(job, round_) for round_ in (1, 2, 3, 4)] == [pids(job, 1)] * 4


@pytest.mark.parametrize(
    "mode",
    [("accumulates", "scaled", "loader", "threads"), ("compiled", "stateful")],
    ids=["scaler-accumulation-loader-threads", "compiled-stateful-loader"],
)
def test_what_scripts_use(job: Ftrun, tmp_path: Path, mode: tuple[str, ...]) -> None:
    """A scaler, accumulated gradients, a forked loader, other threads; compiled code and torchdata's loader.

    A retry and a swap.
    """
    expected = undisturbed_weights(tmp_path / "undisturbed", *mode)
    faults = {0: {"forward 12": COLLECTIVE, "inside 19": DAMAGED}, 1: {"backward 26": KILLED}}
    run = start(job, *ONE_NODE, mode=("built", *mode), faults=faults)
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == expected
    assert set(remedies(job)) <= {"step_retry", "hot_swap"}
    assert pids(job, 1)[0] == ends(run)[0][0]
    assert {event.data.steps_lost for event in job.of("incident.resolved")} == {0}


def test_faults_while_a_step_is_saved(job: Ftrun, undisturbed: set[str]) -> None:
    """Right behind the step, while its copy is made and written to storage: each rank dies once."""
    faults = {0: {"saved 15": KILLED}, 1: {"saved 25": KILLED, "forward 31": DAMAGED}}
    run = start(job, *TWO_NODES, "--checkpoints", "saved", mode=("built", "persists"), faults=faults)
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert set(remedies(job)) <= {"step_retry", "hot_swap"}
    assert {event.data.source for event in job.of("state.loaded") if event.data.round > 1} <= {"memory", "replica"}
    assert job.of("checkpoint.committed")[-1].data.step == 40


def test_a_newcomer_that_dies_while_it_joins(job: Ftrun, undisturbed: set[str]) -> None:
    """In the first round of its process: its swap has failed, and the next policy restarts all."""
    faults = {1: {"backward 12": KILLED, "round 1": ["pass", KILLED]}}
    run = start(job, *ONE_NODE, faults=faults)
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert remedies(job) == ["process_restart"]
    assert pids(job, 1)[0] == pids(job, 2)[0] != pids(job, 3)[0]
    assert job.of("incident.resolved")[0].data.steps_lost == 0


def test_a_dead_node_is_replaced_while_the_other_one_waits(job: Ftrun, tmp_path: Path) -> None:
    """The platform launches another one; its process gets the state of the one that has stayed. The state of random
    numbers is lost with a node: none is drawn."""
    undisturbed = undisturbed_weights(tmp_path / "undisturbed", "drawless")
    run = start(job, *TWO_NODES, mode=("built", "drawless"), faults={})
    job.stepped(1, nodes=2)
    kill(job.agent("node1"))
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert remedies(job) == ["hot_swap"]
    assert [event.data.node for event in job.of("node.lost")] == ["node1"]
    assert pids(job, 1)[0] == ends(run)[0][0]
    assert [event.data.steps_lost for event in job.of("incident.resolved")] == [0]


def test_masters_die_in_the_middle_of_a_retry_and_of_a_swap(job: Ftrun, undisturbed: set[str]) -> None:
    """The next one finishes what was begun; the processes stay."""
    run = start(job, *ONE_NODE, faults={0: {"forward 12": COLLECTIVE}, 1: {"backward 24": KILLED}})
    job.wait("fault.observed")
    kill(job.master())
    failed = job.wait("worker.failed")
    kill(job.master())
    assert run.end() == 0
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert len([event for event in job.of("master.elected") if event.seq > 1]) == 2
    assert job.of("incident.resolved")[-1].seq > failed.seq
    assert set(remedies(job)) <= {"step_retry", "hot_swap"}
    assert pids(job, 1)[0] == ends(run)[0][0]
