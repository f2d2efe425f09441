"""Whatever happens to a job, in whatever order: what must hold after every single fact.

The machine below makes things happen at random to a job whose master is the production engine. The digest of one
fixed history is also compared across interpreters with different hash seeds: nothing in the fold may depend on one.
"""

import os
import subprocess
import sys

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from reproduced import assert_reproduced

from ftcore.commands import StartWorkers, StopWorkers
from ftcore.engine.orders import order_for
from ftcore.events import decode, encode
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.job import JobParked, JobSpec
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import PolicyLoaded
from ftcore.events.world import StoreFailed
from ftcore.ids import Term
from ftcore.policies.base import Ability
from ftcore.policies.chain import BUILT_IN, default_entry
from ftcore.policies.file.config import default_chain
from ftcore.replay import Explainer, Verifier, fold_log, read
from ftcore.states.fold import fold, is_duplicate
from ftcore.states.incident import IncidentPhase
from ftcore.states.job import ENDED, JobPhase
from ftcore.states.model import digest, to_json
from ftcore.states.node import ACTIVE
from ftcore.states.snapshot import pack, restore, seal
from ftcore.states.views import Mirror
from ftcore.states.world import usable
from ftcore.testing.driver import JobDriver

ERRORS = st.sampled_from(
    ["", "ValueError: bad batch 7", "RuntimeError: Connection closed by peer [::1]:1", "torch.OutOfMemoryError: x"]
)
NODES = st.sampled_from(["node0", "node1", "node2", "spare"])


ABILITIES = st.one_of(st.just([]), st.just(list(Ability)), st.lists(st.sampled_from(list(Ability)), unique=True))


def chain(data: st.DataObject, budget: int) -> PolicyLoaded:
    """The default chain, or any other that ends with ``stop``."""
    names = [name for name in BUILT_IN if name != "stop"]
    chosen = data.draw(st.one_of(st.none(), st.lists(st.sampled_from(names), unique=True)))
    if chosen is None:
        return default_chain(max_restarts=budget)
    entries = []
    for name in [*chosen, "stop"]:
        entry = default_entry(name)
        if name == "process_restart":
            entry.options["max_restarts"] = budget
        entries.append(entry)
    return msgspec.structs.replace(default_chain(), source="any", chain=tuple(entries))


class Job(RuleBasedStateMachine):
    """A job to which things happen."""

    @initialize(
        data=st.data(),
        nodes=st.integers(1, 3),
        least=st.integers(1, 3),
        unit=st.integers(1, 2),
        budget=st.integers(0, 4),
        running=st.booleans(),
        order_by=st.sampled_from(["", "switch"]),
    )
    def set_up(
        self, data: st.DataObject, nodes: int, least: int, unit: int, budget: int, running: bool, order_by: str
    ) -> None:
        unit = min(unit, nodes)
        least = min(least, nodes - nodes % unit)  # else no world can ever be formed
        fitting = [size for size in range(least, nodes + 1) if size % unit == 0]
        sizes = tuple(sorted(data.draw(st.sets(st.sampled_from(fitting)))))
        spec = JobSpec(
            argv=("train.py",), nodes_min=least, nodes_max=nodes, node_unit=unit, sizes=sizes, order_by=order_by
        )
        self.driver = JobDriver(slots=2, spec=spec, policy=chain(data, budget), abilities=data.draw(ABILITIES))
        self.driver.capacity = data.draw(st.integers(0, 2))
        self.driver.slow_platform = data.draw(st.booleans())
        self.budget = budget
        self.snapshot_every = data.draw(st.integers(1, 40))
        self.verifier = Verifier()
        self.seen = 0
        self.mirror = Mirror()
        self.driver.submit()
        if running:
            for number in range(nodes):
                self.driver.join(f"node{number}")
            self.driver.settle()

    # -- what happens

    @rule(
        node=NODES,
        ordinal=st.one_of(st.none(), st.integers(0, 5)),
        switch=st.sampled_from(["", "s2", "s10"]),
        warms=st.booleans(),
    )
    def a_node_joins(self, node: str, ordinal: int | None, switch: str, warms: bool) -> None:
        self.driver.join(node, ordinal=ordinal, labels={"switch": switch} if switch else {}, warms=warms)

    @precondition(lambda self: self.driver.state.membership.cold)
    @rule(data=st.data())
    def a_node_is_warm(self, data: st.DataObject) -> None:
        self.driver.warm(data.draw(st.sampled_from(sorted(self.driver.state.membership.cold))))

    def _alive(self) -> list[str]:
        return [node.node for node in self.driver.state.membership.alive()]

    @precondition(lambda self: self._alive())
    @rule(data=st.data())
    def a_node_is_lost(self, data: st.DataObject) -> None:
        self.driver.lose(data.draw(st.sampled_from(self._alive())))

    @precondition(lambda self: self._alive())
    @rule(data=st.data())
    def a_node_falls_silent(self, data: st.DataObject) -> None:
        self.driver.silence(data.draw(st.sampled_from(self._alive())))

    @precondition(lambda self: self._alive())
    @rule(
        data=st.data(),
        kinds=st.lists(
            st.sampled_from(["pause_workers", "resume_workers", "park_workers", "save_checkpoint", "check_health"]),
            max_size=3,
        ),
    )
    def a_node_refuses_from_now_on(self, data: st.DataObject, kinds: list[str]) -> None:
        self.driver.refuses[data.draw(st.sampled_from(self._alive()))] = tuple(
            kind for kind in kinds if kind != "check_health"
        )

    @precondition(lambda self: self._alive())
    @rule(
        data=st.data(), verdict=st.sampled_from(["healthy", "slow", "unreachable", "unavailable", "failed", "faulty"])
    )
    def a_node_becomes(self, data: st.DataObject, verdict: str) -> None:
        self.driver.health[data.draw(st.sampled_from(self._alive()))] = verdict

    @precondition(lambda self: self._members())
    @rule(
        data=st.data(),
        kind=st.sampled_from(
            ["uce", "collective", "hang", "straggler", "loss-spike", "loss-nan", "norm", "norm-spike", ""]
        ),
        local_rank=st.integers(0, 1),
    )
    def something_is_observed(self, data: st.DataObject, kind: str, local_rank: int) -> None:
        self.driver.observe(data.draw(st.sampled_from(self._members())), kind, local_rank=local_rank)

    @precondition(lambda self: self.driver.state.rounds.world is not None)
    @rule(back=st.integers(0, 3))
    def a_checkpoint_is_committed(self, back: int) -> None:
        self.driver.commit(max(0, self.driver.step - back))

    @rule(
        command=st.sampled_from(["pause", "resume", "drain", "evict", "checkpoint"]),
        node=st.sampled_from(["node0", "node1", "node2", "nobody"]),
    )
    def an_operator_asks(self, command: str, node: str) -> None:
        self.driver.command(command, node if command in ("drain", "evict") else "")

    def _members(self) -> list[str]:
        world = self.driver.state.rounds.world
        if world is None:
            return []
        return [
            m.node for m in world.members if self.driver.state.membership.current(m.node, m.incarnation) is not None
        ]

    @precondition(lambda self: self._members())
    @rule(data=st.data(), code=st.sampled_from([1, -9, -11, -15]), error=ERRORS, local_rank=st.integers(0, 1))
    def a_worker_fails(self, data: st.DataObject, code: int, error: str, local_rank: int) -> None:
        node = data.draw(st.sampled_from(self._members()))
        self.driver.fail(node, local_rank=local_rank, exitcode=code, message=error if code == 1 else "")

    @precondition(lambda self: self.driver.state.rounds.store_nodes)
    @rule(data=st.data())
    def a_store_is_lost(self, data: st.DataObject) -> None:
        state = self.driver.state
        round_, node = data.draw(st.sampled_from(sorted(state.rounds.store_nodes.items())))
        found = state.membership.nodes[node]
        failed = StoreFailed(node=node, incarnation=found.incarnation, round=round_, effect="", error="gone")
        self.driver.say(node, failed)

    def _waiting(self) -> list[tuple[str, str]]:
        return [
            (action.effect, node)
            for action in self.driver.state.orders.open.values()
            for node in action.waiting
            if node not in self.driver._silent
        ]

    @precondition(lambda self: self._waiting())
    @rule(data=st.data())
    def one_order_is_obeyed(self, data: st.DataObject) -> None:
        effect, node = data.draw(st.sampled_from(self._waiting()))
        action = self.driver.state.orders.open[effect]
        self.driver.obey(node, order_for(self.driver.state, action, node))

    @rule(step=st.booleans())
    def all_orders_are_obeyed(self, step: bool) -> None:
        self.driver.settle(step=step)

    @rule()
    def steps_are_made(self) -> None:
        self.driver.make_steps(3)

    @rule()
    def time_passes_to_the_next_deadline(self) -> None:
        self.driver.wait()

    @rule(key=st.sampled_from(["settle/1", "action/nothing", "join", "window/2"]))
    def a_deadline_that_is_over_comes_late(self, key: str) -> None:
        if key not in self.driver.state.deadlines:
            self.driver.own(DeadlineExpired(key=key))

    @rule()
    def the_master_changes(self) -> None:
        self.driver.term = Term(self.driver.term + 1)
        self.driver.own(self.driver.policy)

    @precondition(lambda self: self.driver.state.phase in ENDED)
    @rule()
    def it_is_submitted_again(self) -> None:
        self.driver.submit()

    @precondition(lambda self: self.driver.state.phase == "running")
    @rule()
    def every_worker_ends(self) -> None:
        self.driver.finish()

    @precondition(lambda self: self.driver.state.phase not in ENDED)
    @rule()
    def a_fact_cannot_be_folded(self) -> None:
        self.driver.own(JobParked(error="KeyError: 'x'", fact="{}", version="0"))

    @rule()
    def an_operator_resumes_it(self) -> None:
        self.driver.own(OperatorCommanded(command="resume", who="user@host"))

    @rule(really=st.integers(0, 9))
    def an_operator_stops_it(self, really: int) -> None:
        if really == 9:
            self.driver.stop()

    # -- what must hold

    @invariant()
    def deciding_again_gives_the_same(self) -> None:
        if not hasattr(self, "driver"):
            return
        for event in self.driver.events[self.seen :]:
            self.verifier.feed(decode(encode(event)))
        self.seen = len(self.driver.events)
        report = self.verifier.report()
        assert report.ok, "\n".join(map(str, report.mismatches))
        assert report.digest == digest(self.driver.state)

    @invariant()
    def what_was_said_is_a_duplicate(self) -> None:
        if not hasattr(self, "driver"):
            return
        for (source, incarnation), n in self.driver._said.items():
            newest = self.driver.state.log.sources[source]
            if newest[0] == incarnation:
                assert is_duplicate(self.driver.state, source, incarnation, n)
                assert not is_duplicate(self.driver.state, source, incarnation, n + 1)

    @invariant()
    def workers_of_two_rounds_never_run_together(self) -> None:
        if not hasattr(self, "driver"):
            return
        active = {node.round for node in self.driver.state.membership.alive() if node.phase in ACTIVE}
        assert len(active) <= 1
        starting = [
            a.command.round for a in self.driver.state.orders.open.values() if isinstance(a.command, StartWorkers)
        ]
        stopping = [
            a.command.round for a in self.driver.state.orders.open.values() if isinstance(a.command, StopWorkers)
        ]
        assert not starting or not stopping or min(starting) > max(stopping)

    @invariant()
    def every_living_node_has_a_place_of_its_own(self) -> None:
        if not hasattr(self, "driver"):
            return
        state = self.driver.state
        living = {node.ordinal: node.node for node in state.membership.nodes.values() if node.alive}
        assert living == state.membership.places and len(living) == sum(
            node.alive for node in state.membership.nodes.values()
        )
        assert max(living, default=-1) < state.membership.places_end
        members = state.rounds.world.members if state.rounds.world is not None else ()
        assert len({member.ordinal for member in members}) == len(members)
        assert not members or len(members) == usable(len(members), self.driver.spec)

    @invariant()
    def restarts_stay_within_their_budget(self) -> None:
        if not hasattr(self, "driver"):
            return
        state = self.driver.state
        recent = [t for t in state.history.attempts.get("process_restart", ()) if t > state.time - 3600 * 10**9]
        assert len(recent) <= self.budget
        assert state.history.streak >= 0

    @invariant()
    def an_open_incident_is_being_worked_on(self) -> None:
        if not hasattr(self, "driver"):
            return
        known = self.driver.state.incident
        orders = self.driver.state.orders.open.values()
        starts = any(isinstance(each.command, StartWorkers) and each.waiting for each in orders)
        waits = starts or self.driver.state.phase is JobPhase.STUCK  # while it is stuck, nothing is decided
        if known is not None and not self.driver.state.requests.held and not waits:
            assert known.phase in (IncidentPhase.ACTING, IncidentPhase.DEFERRED, IncidentPhase.VERIFYING)
            assert known.plan is not None
        assert known is None or self.driver.state.phase not in ENDED

    def teardown(self) -> None:
        """If the nodes behave from now on the job trains or ends; it can be brought to its end; its log is whole."""
        if not hasattr(self, "driver"):
            return
        self._recover()
        self._end()
        events = self.driver.events
        explainer = Explainer()
        read(events, explainer)
        assert all(incident.closed is not None for incident in explainer.incidents())
        assert digest(fold_log(events)) == digest(self.driver.state)
        state = fold_log([])
        for event in events:
            self.mirror.follow(fold(state, event))
        read_back = [decode(encode(event)) for event in events]
        whole, hopping = fold_log(read_back), fold_log([])
        for event in read_back:
            fold(hopping, event)
            if event.seq % self.snapshot_every == 0:
                restored = restore(seal(pack(hopping)))
                assert restored is not None
                hopping = restored.state
        assert to_json(hopping) == to_json(whole)
        assert_reproduced(read_back)

    def _recover(self) -> None:
        driver = self.driver
        driver.refuses, driver.health, driver.capacity = {}, {}, 1000
        driver.own(OperatorCommanded(command="resume", who="user@host"))
        driver.own(OperatorCommanded(command="resume", who="user@host"))
        for number in range(driver.spec.nodes_max):
            driver.join(f"node{number}")
        for number in range(len(driver.state.membership.quarantined)):  # whoever is not wanted any more does not count
            driver.join(f"other{number}")
        for _ in range(300):  # budgets of two policies may have to be spent on a node that answers nothing
            driver.settle()
            if driver.state.phase in ENDED or (driver.state.phase == "running" and driver.state.incident is None):
                break
            assert driver.wait(), f"nothing happens any more: {driver.state}"
        assert driver.state.phase in ("running", *ENDED), driver.state
        assert all(
            node.phase != "faulted" for node in driver.state.membership.alive() if driver.state.phase == "running"
        )

    def _end(self) -> None:
        if self.driver.state.phase not in ENDED:
            self.driver.stop()
        for _ in range(50):
            self.driver.settle(step=False)
            if self.driver.state.phase in ENDED or not self.driver.wait():
                break
        assert self.driver.state.phase in ENDED, self.driver.state


TestJob = Job.TestCase
TestJob.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)

HISTORY = """
from ftcore.states.model import digest
from ftcore.testing.driver import JobDriver
driver = JobDriver(nodes=3, slots=2)
driver.start()
driver.fail("node2", message="RuntimeError: Connection reset by peer")
driver.fail("node0", exitcode=-9)
driver.settle()
driver.lose("node1")
driver.settle()
driver.join("node1")
driver.settle()
driver.stop()
driver.settle()
print(digest(driver.state))
"""


def test_the_digest_does_not_depend_on_the_hash_seed():
    """Two interpreters that order their sets differently fold one history to one digest."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", HISTORY],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1
