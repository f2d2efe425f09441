"""Scenarios: short commands, and the events that the production engine makes of them, as a reviewer reads them.

A file in ``scenarios/`` holds blocks: commands, a line of dashes, the events that they led to, a blank line. After a
change that is meant, run ``pytest tests/unit/engine --rewrite`` and read the difference: commit what you can explain.

    job nodes=2 slots=1 min=1 max_restarts=3     how the job is set up (first line)
        chain="a b stop" a.option=3 b.option=x   its chain, and options of its entries; default: the default chain
        abilities=pause,retry                    what its platform and script declare
    observe N kind local=1 norm=9.5              somebody sees a trouble that ends no process
    command drain node=N                         an operator asks for something
    commit step=4                                a checkpoint is safe
    refuse N park_workers | health N faulty        what a node (or *) refuses; what its health check tells
    capacity K                                   how many more nodes the platform can launch
    slow                                         what the platform launches comes when a command says so
    submit | start | join N warms=yes | warm N   the job is asked for; and all its nodes come; one node comes, and
                                                 cannot fork workers yet; now it can
    settle | settle idle                         orders are obeyed, then every member makes a step (idle: none does)
    fail N exit=-9 local=1 error=... tail=...    a worker fails
    lose N | silence N                           a node is lost; a node answers no more
    finish_one N                                 all workers of one node end well
    finish | stop | steps K                      all workers end well; an operator stops the job; steps are made
    leave N | unstartable N | halt N             a node says goodbye; cannot start its workers; stops them by itself
    park | contradict N | resume                 a fact cannot be folded; a node has seen another log; an operator lets
                                                 the stuck job go on
    wait | state                                 time passes to the next deadline; prints the state in brief

Every scenario's log is verified and folded at its end.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from reproduced import assert_reproduced

from ftcore import __version__
from ftcore.cli.ctl_lines import summary
from ftcore.events import decode, encode
from ftcore.events.envelope import Event
from ftcore.events.job import JobParked, JobSpec, LogContradicted
from ftcore.events.node import NodeGaveUp, NodeLeft
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import ChainEntry
from ftcore.events.registry import Kind
from ftcore.events.worker import WorkersFinished, WorkersStopped, WorkersUnstartable
from ftcore.policies.chain import default_entry
from ftcore.policies.file.config import default_chain
from ftcore.replay import verify
from ftcore.states.fold import fold
from ftcore.states.incident import INCIDENT
from ftcore.states.job import JOB
from ftcore.states.model import JobState, digest
from ftcore.states.node import NODE
from ftcore.states.worker import WORKER
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
        loaded = default_chain(int(restarts) if restarts is not None else None)
        if "chain" in policy:
            loaded = msgspec.structs.replace(
                loaded, source="scenario", chain=tuple(_entry(n, policy) for n in policy["chain"].split())
            )
        abilities = policy.get("abilities", "").split(",") if policy.get("abilities") else ()
        self.driver = JobDriver(slots=int(slots), spec=spec, policy=loaded, abilities=abilities)

    def _observe(self, node: str, kind: str, local: str = "0", message: str = "", **values: str) -> None:
        figures = {name: float(value) for name, value in values.items()}
        self.driver.observe(node, kind, local_rank=int(local), message=message, values=figures)

    def _command(self, command: str, node: str = "") -> None:
        self.driver.command(command, node)

    def _commit(self, step: str = "") -> None:
        self.driver.commit(int(step) if step else None)

    def _refuse(self, node: str, *kinds: str) -> None:
        self.driver.refuses[node] = kinds

    def _health(self, node: str, verdict: str) -> None:
        self.driver.health[node] = verdict

    def _capacity(self, count: str) -> None:
        self.driver.capacity = int(count)

    def _submit(self) -> None:
        self.driver.submit()

    def _start(self) -> None:
        self.driver.start()

    def _slow(self) -> None:
        self.driver.slow_platform = True

    def _join(self, node: str, warms: str = "") -> None:
        self.driver.join(node, warms=warms == "yes")

    def _warm(self, node: str) -> None:
        self.driver.warm(node)

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

    def _finish_one(self, node: str) -> None:
        found = self.driver.state.membership.nodes[node]
        self.driver.say(node, WorkersFinished(node=node, incarnation=found.incarnation, round=found.round))

    def _stop(self) -> None:
        self.driver.stop()

    def _steps(self, count: str) -> None:
        self.driver.make_steps(int(count))

    def _wait(self) -> None:
        assert self.driver.wait(), "there is no deadline to wait for"

    def _leave(self, node: str) -> None:
        incarnation = self.driver.state.membership.nodes[node].incarnation
        self.driver.say(node, NodeLeft(node=node, incarnation=incarnation, reason="told to"))

    def _give_up(self, node: str) -> None:
        incarnation = self.driver.state.membership.nodes[node].incarnation
        self.driver.say(
            node, NodeGaveUp(node=node, incarnation=incarnation, exit_code=1, reason="its restarts are used up")
        )

    def _unstartable(self, node: str) -> None:
        found = self.driver.state.membership.nodes[node]
        self.driver.say(
            node,
            WorkersUnstartable(
                node=node, incarnation=found.incarnation, round=found.round, effect="", error="train.py: no such file"
            ),
        )

    def _halt(self, node: str) -> None:
        found = self.driver.state.membership.nodes[node]
        self.driver.say(
            node,
            WorkersStopped(
                node=node,
                incarnation=found.incarnation,
                round=found.round,
                exitcodes=(-15,),
                reason="no master for 120 s",
            ),
        )

    def _park(self) -> None:
        self.driver.own(JobParked(error="KeyError: 'x'", fact="{}", version=__version__))

    def _contradict(self, node: str) -> None:
        reason = "its log goes on to event 900; this one ends before"
        self.driver.own(LogContradicted(node=node, log_id="other", seq=900, digest="00", reason=reason))

    def _resume(self) -> None:
        self.driver.own(OperatorCommanded(command="resume", who="user@host"))

    def _state(self) -> str:
        state = self.driver.state
        nodes = " ".join(f"{node.node}:{node.phase}" for node in state.membership.nodes.values())
        incident = f"{state.incident.id}:{state.incident.phase}" if state.incident is not None else "none"
        waiting = ", ".join(f"{key}" for key in state.deadlines) or "none"
        return f"{state.phase}; nodes {nodes}; incident {incident}; deadlines {waiting}; step {state.training.step}"


def _entry(name: str, given: dict[str, str]) -> ChainEntry:
    """An entry with its defaults, and the options given as ``name.option=value`` in YAML."""
    options = default_entry(name).options
    for key, value in given.items():
        policy, _, option = key.partition(".")
        if policy == name:
            assert option in options, key
            found = yaml.safe_load(value)
            options[option] = tuple(found) if isinstance(found, list) else found
    return ChainEntry(policy=name, options=options)


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
    assert_reproduced(scenario.driver.events)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(observed)
    assert recorded == observed or request.config.getoption("--rewrite", default=False)


def test_there_are_scenarios():
    """A wrong folder must not pass for success."""
    assert len(FILES) >= 10


NOT_TAKEN = """
incident diagnosing incident.rediagnosed/worse
incident escalating incident.rediagnosed/worse
incident open incident.rediagnosed/worse
job assembling job.finished/failed
job assembling job.finished/stopped
job checking incident.escalated
job checking job.finished/failed
job checking job.finished/stopped
job checking job.parked
job checking log.contradicted
job failed job.submitted
job forming incident.rediagnosed
job forming job.finished/failed
job forming job.finished/stopped
job paused incident.escalated
job paused incident.rediagnosed
job paused job.finished/failed
job paused job.finished/stopped
job paused job.finished/succeeded
job paused job.parked
job recovering incident.resolved/paused
job starting incident.escalated
job starting job.finished/failed
job starting job.finished/stopped
job starting job.finished/succeeded
job starting job.parked
job starting log.contradicted
node checking action.ordered/check_health
node checking action.ordered/release_node
node checking action.ordered/start_workers
node checking node.joined/again
node checking node.lost
node draining node.joined/again
node draining node.lost
node draining node.quarantined
node faulted node.joined/again
node faulted node.left
node faulted node.lost
node faulted worker.failed
node faulted workers.stopped
node finished action.ordered/release_node
node finished action.ordered/start_workers
node finished node.joined/again
node finished node.lost
node finished node.quarantined
node finished workers.stopped
node parked action.ordered/release_node
node parked node.joined/again
node parked node.left
node parked node.quarantined
node parked workers.stopped
node paused node.joined/again
node paused node.left
node paused node.lost
node paused workers.finished
node paused workers.stopped
node quarantined node.joined/again
node quarantined node.lost
node standby node.joined/again
node standby node.lost
node starting node.joined/again
node starting node.left
node starting worker.failed
node starting workers.finished
node starting workers.stopped
worker parked node.joined/again
worker parked node.left
worker parked workers.finished
worker parked workers.unstartable
worker running workers.unstartable
worker starting node.joined/again
worker starting node.left
worker starting worker.failed
worker starting workers.finished
worker starting workers.stopped
"""
"""Rows that no scenario takes: a list that should only get shorter. The property test wanders through most of them."""


def test_scenarios_take_the_rows():
    """Every row of the machines in the log is taken by some scenario, but for those that are named here."""
    taken: set[str] = set()
    for path in FILES:
        scenario, state = Scenario(), JobState()
        transcript(path.read_text(), scenario)
        for event in scenario.driver.events:
            taken |= {f"{c.machine} {c.source} {c.trigger}" for c in fold(state, event) if c.target is not None}
    rows = {
        f"{machine.name} {row.source} {row.trigger}"
        for machine in (JOB, NODE, WORKER, INCIDENT)
        for row in machine.rows
    }
    assert sorted(rows - taken) == sorted(filter(None, NOT_TAKEN.splitlines()))
