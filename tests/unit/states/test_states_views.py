"""Views of the machines in the ``transitions`` package, in step with the fold."""

import subprocess
import sys

import pytest

from ftcore.states.drawing import MACHINES, to_dot, to_mermaid
from ftcore.states.fold import fold
from ftcore.states.model import JobState
from ftcore.states.views import Mirror, Model
from ftcore.testing.driver import JobDriver


def eventful() -> JobDriver:
    driver = JobDriver(nodes=2, slots=2)
    driver.start()
    driver.fail("node1", message="RuntimeError: Connection reset by peer")
    driver.fail("node0", exitcode=-9)
    driver.settle()
    driver.lose("node1")
    driver.settle()
    driver.join("node1")
    driver.settle()
    driver.finish()
    driver.settle()
    driver.start()
    driver.stop()
    driver.settle()
    assert driver.ended
    return driver


def test_a_mirror_stays_in_step_through_whole_logs():
    """After every event of two runs each model is where the fold has its node, worker, job or incident."""
    driver, mirror, state = eventful(), Mirror(), JobState()
    for event in driver.events:
        mirror.follow(fold(state, event))
        for (machine, instance), model in mirror.models.items():
            if machine == "job":
                assert model.state == state.phase
            elif machine == "node" and state.membership.nodes[instance].workers:
                assert model.state == state.membership.nodes[instance].phase
            elif machine == "incident" and state.incident is not None and state.incident.id == instance:
                assert model.state == state.incident.phase
    assert {machine for machine, _ in mirror.models} == {"job", "node", "worker", "incident"}


def test_hooks_are_called_on_entering_and_leaving():
    """A model's ``on_enter_...`` and ``on_exit_...`` see the fold's change; a first state calls none."""
    seen: list[str] = []

    class Job(Model):
        def on_enter_recovering(self, event):
            seen.append(f"{self.instance}: {event.kwargs['change'].trigger}")

        def on_exit_recovering(self, event):
            seen.append("moved on")

    mirror, state = Mirror({"job": Job}), JobState()
    driver = JobDriver()
    driver.start()
    driver.fail("node0", exitcode=-9)
    driver.settle()
    for event in driver.events:
        mirror.follow(fold(state, event))
    assert seen == ["job: incident.opened", "moved on"]
    assert set(mirror.models) == {("job", "job")}


def test_a_machine_that_does_not_exist_is_refused():
    """The error for an unknown name lists the known names."""
    with pytest.raises(ValueError, match="unknown machine nodes; expected job, master, agent, work, node"):
        Mirror({"nodes": Model})


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_drawings_show_every_state_and_arrow(machine):
    """Mermaid and dot hold each state and each pair of states with a row between them."""
    mermaid, dot = to_mermaid(machine), to_dot(machine)
    for row in machine.rows:
        assert f"{row.source} --> {row.target}" in mermaid
        assert f'"{row.source}" -> "{row.target}"' in dot
    assert all(f"{state} --> [*]" in mermaid for state in machine.finals)


def test_nothing_else_imports_transitions():
    """Neither a job nor the command line imports the package."""
    code = (
        "import sys, ftcore.engine.decide, ftcore.replay, ftcore.cli.ctl_machines; print('transitions' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
