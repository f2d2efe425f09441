"""Scenarios: short commands, and the events that the production engine makes of them, as a reviewer reads them.

A file in ``scenarios/`` holds blocks: commands, a line of dashes, the events that they led to, a blank line. After a
change that is meant, run ``pytest tests/unit/engine --rewrite`` and read the difference: commit what you can explain.

    job nodes=2 slots=1 min=1 max_restarts=3     how the job is set up (first line)
    submit | start | join N                      the job is asked for; and all its nodes come; one node comes
    settle | settle idle                         orders are obeyed, then every member makes a step (idle: none does)
    fail N exit=-9 local=1 error=... tail=...    a worker fails
    lose N | silence N                           a node is lost; a node answers no more
    finish | stop | steps K                      all workers end well; an operator stops the job; steps are made
    wait | state                                 time passes to the next deadline; prints the state in brief

Every scenario's log is verified and folded at its end.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcore import __version__
from ftcore.cli.ctl_lines import summary
from ftcore.events import decode, encode
from ftcore.events.envelope import Event
from ftcore.events.job import JobSpec
from ftcore.events.registry import Kind
from ftcore.policies.config import default_chain
from ftcore.replay import verify
from ftcore.states.model import digest
from ftcore.testing.driver import EPOCH_NS, JobDriver

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


class Scenario:
    """Runs commands on a job."""

    def __init__(self) -> None:
        self.driver = JobDriver()

    def run(self, line: str) -> Iterator[str]:
        """Carry out one command; yields lines about the events that it led to."""
        name, *words = shlex.split(line)
        known = len(self.driver.events)
        given = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        if name == "state":
            yield self._state()
            return
        getattr(self, f"_{name}")(*plain, **given)
        yield from map(shown, self.driver.events[known if name != "job" else 0 :])

    def _job(self, nodes: str = "2", slots: str = "1", min: str = "", unit: str = "1", **policy: str) -> None:
        spec = JobSpec(argv=("train.py",), nodes_min=int(min or nodes), nodes_max=int(nodes), node_unit=int(unit))
        restarts = policy.get("max_restarts")
        chain = default_chain(int(restarts) if restarts is not None else None)
        self.driver = JobDriver(slots=int(slots), spec=spec, policy=chain)

    def _submit(self) -> None:
        self.driver.submit()

    def _start(self) -> None:
        self.driver.start()

    def _join(self, node: str) -> None:
        self.driver.join(node)

    def _settle(self, how: str = "") -> None:
        self.driver.settle(step=how != "idle")

    def _fail(self, node: str, exit: str = "1", local: str = "0", error: str = "", tail: str = "") -> None:
        self.driver.fail(node, local_rank=int(local), exitcode=int(exit), message=error, tail=tail)

    def _lose(self, node: str) -> None:
        self.driver.lose(node)

    def _silence(self, node: str) -> None:
        self.driver.silence(node)

    def _finish(self) -> None:
        self.driver.finish()

    def _stop(self) -> None:
        self.driver.stop()

    def _steps(self, count: str) -> None:
        self.driver.make_steps(int(count))

    def _wait(self) -> None:
        assert self.driver.wait(), "there is no deadline to wait for"

    def _state(self) -> str:
        state = self.driver.state
        nodes = " ".join(f"{node.node}:{node.phase}" for node in state.nodes.values())
        incident = f"{state.incident.id}:{state.incident.phase}" if state.incident is not None else "none"
        waiting = ", ".join(f"{key}" for key in state.deadlines) or "none"
        return f"{state.phase}; nodes {nodes}; incident {incident}; deadlines {waiting}; step {state.step}"


def shown(event: Event) -> str:
    """A line: seq, seconds since the beginning, type (decisions indented), what it says."""
    name = event.type if event.kind is Kind.FACT else f"  {event.type}"
    text = summary(event).replace(__version__, "VERSION")
    return f"{event.seq:>3} {(event.time - EPOCH_NS) / 1e9:>8.3f}  {name:<22} {text}".rstrip()


def transcript(text: str, scenario: Scenario) -> str:
    """The file as it should be: its commands with what they lead to."""
    made = []
    for block in re.split(r"\n\s*\n", text.strip()):
        commands = block.split("\n----", 1)[0].splitlines()
        if all(line.startswith("#") for line in commands):
            made.append("\n".join(commands))
            continue
        lines = [line for command in commands if not command.startswith("#") for line in scenario.run(command)]
        made.append("\n".join([*commands, "----", *lines]))
    return "\n\n".join(made) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest):
    """The engine makes of the commands what the file says; the log verifies and folds to the live state."""
    scenario = Scenario()
    recorded = path.read_text()
    observed = transcript(recorded, scenario)
    report = verify(decode(encode(event)) for event in scenario.driver.events)
    assert report.ok, "\n".join(map(str, report.mismatches))
    assert report.digest == digest(scenario.driver.state)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(observed)
    assert recorded == observed or request.config.getoption("--rewrite", default=False)


def test_there_are_scenarios():
    """A wrong folder must not pass for success."""
    assert len(FILES) >= 10
