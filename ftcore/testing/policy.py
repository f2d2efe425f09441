"""Conformance tests for policies, as a test class.

    from ftcore.testing.policy import PolicyContract

    class TestMine(PolicyContract):
        policy = Mine()

``pytest`` collects the subclass; this module does not import pytest. The policy is asked about many moments: states in
which simulated jobs asked their chain, and variants of them with every class of fault and kind of incident. As in a
chain, it is asked only about its ``kinds``, and only in jobs with the abilities that it ``needs``.

A failure message has the moment, the options and the error.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs
import msgspec

from ftcore.events.envelope import Event
from ftcore.events.job import JobSpec
from ftcore.events.policy import PolicyAnswered, PolicyConsidered, PolicyFaulted
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability
from ftcore.policies.chain import BUILT_IN, default_entry, handles
from ftcore.policies.external import REQUESTS, ask, declare, read_state
from ftcore.policies.file.config import default_chain
from ftcore.policies.options import Option, described
from ftcore.states.fold import fold
from ftcore.states.model import JobState, OperatorRequest, to_json
from ftcore.testing.driver import JobDriver

PATIENCE_S = 60.0
"""Timeout of a test in seconds; a policy that meets ftcore's deadline needs a hundredth of it."""

_ALL_POLICIES = (*(name for name in BUILT_IN if name != "stop"), "stop")


@attrs.frozen
class Moment:
    """A state in which a chain asks its policies.

    Args:
        name: description.
        state: JSON of the folded state, with an open incident.
    """

    name: str
    state: bytes


class PolicyContract:
    """Conformance tests; subclass it and set ``policy``."""

    policy: ClassVar[Any]
    """The policy under test, an object."""

    def test_it_declares_itself_soundly(self) -> None:
        """Name, doc, conditions, kinds, needs and options are valid, so that a policy file can use the policy."""
        policy = self.policy
        name = getattr(policy, "name", "")
        if BUILT_IN.get(name) is not policy:
            declare(policy, name, "test")

    def test_every_verdict_is_sound(self) -> None:
        """The policy raises nothing, and each answer is a Take or a Pass that the job can carry out."""

        def check() -> None:
            for moment in self._moments():
                self._ask(moment, {})

        self._within(check)

    def test_the_same_question_has_the_same_answer(self) -> None:
        """The policy is deterministic: no memory, clock or randomness."""

        def check() -> None:
            moments = list(self._moments())
            first = [self._ask(moment, {}) for moment in moments]
            second = [self._ask(moment, {}) for moment in reversed(moments)][::-1]
            for moment, before, after in zip(moments, first, second, strict=True):
                assert before == after, f"{moment.name}: answered {before}, then {after}"

        self._within(check)

    def test_every_value_of_an_option_is_survived(self) -> None:
        """Each option is tested at its limits, or with every choice, with the others at their defaults."""

        def check() -> None:
            for options in _variants(described(self.policy.options)):
                for moment in self._moments(variants=False):
                    self._ask(moment, options)

        self._within(check)

    def _moments(self, variants: bool = True) -> Iterator[Moment]:
        """The moments about which a chain would ask the policy."""
        needs = set(self.policy.needs)
        for moment in (*_recorded(), *(_varied() if variants else ())):
            job = read_state(moment.state)
            assert job.incident is not None
            if all(job.can(need) for need in needs) and handles(self.policy.kinds, job.incident, job):
                yield moment

    def _ask(self, moment: Moment, options: Mapping[str, Any]) -> PolicyAnswered:
        answer = ask(self.policy, moment.state, options, "ask_policy.1.1")
        suffix = f" with {dict(options)}" if options else ""
        assert not isinstance(answer, PolicyFaulted), f"{moment.name}{suffix}: {answer.error}"
        return answer

    def _within(self, check: Callable[[], None]) -> None:
        """Run a test in a thread, so that a policy that never answers fails the test instead of blocking it."""
        self.test_it_declares_itself_soundly()  # an invalid declaration cannot be asked
        raised: list[BaseException] = []

        def run() -> None:
            try:
                check()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{self.policy.name} did not answer all questions in {PATIENCE_S:g} s"
        if raised:
            raise raised[0]


def _variants(options: Mapping[str, Option]) -> Iterator[dict[str, Any]]:
    for name, option in options.items():
        values: tuple[Any, ...] = ()
        if option.kind == "bool":
            values = (True, False)
        elif option.kind == "choice":
            values = option.choices
        elif option.kind == "int":
            values = (int(option.minimum), *(() if option.maximum is None else (int(option.maximum),)))
        elif option.kind in ("number", "duration"):
            values = (float(option.minimum), *(() if option.maximum is None else (float(option.maximum),)))
        for value in values:
            yield {name: value}


# -- moments ----------------------------------------------------------------------------------------------------------


@functools.cache
def _recorded() -> tuple[Moment, ...]:
    """Moments in which simulated jobs asked their chain: the states before each verdict."""
    chain = tuple(map(default_entry, _ALL_POLICIES))
    loaded = msgspec.structs.replace(default_chain(), source="test", chain=chain)
    found: dict[bytes, Moment] = {}
    for abilities in ((), tuple(Ability)):
        for history in _HISTORIES:
            spec = JobSpec(argv=("train.py",), nodes_min=1, nodes_max=3)
            driver = JobDriver(slots=2, spec=spec, policy=loaded, abilities=abilities, tick_s=0.01)
            history(driver)
            kind = "a job with all abilities" if abilities else "a job without abilities"
            scenario = f"{kind}, {history.__name__.strip('_').replace('_', ' ')}"
            for seq, state in _asked(driver.events):
                found[state] = Moment(f"{scenario}, event {seq}", state)
    return tuple(found.values())


def _asked(events: Sequence[Event]) -> Iterator[tuple[int, bytes]]:
    job = JobState()
    for event in events:
        if isinstance(event.data, PolicyConsidered):
            yield event.seq, to_json(job)
        fold(job, event)


@functools.cache
def _varied() -> tuple[Moment, ...]:
    """The first moment of each history, with every class of fault and kind of incident."""
    found = {}
    seen = set()
    for moment in _recorded():
        history = moment.name.rpartition(", event")[0]
        if history in seen:
            continue
        seen.add(history)
        for kind, cls, detail in _readings():
            state = _read_as(moment.state, kind, cls, detail)
            found[state] = Moment(f"{moment.name}, changed to {kind} {cls} {detail}".rstrip(), state)
    return tuple(found.values())


def _readings() -> Iterator[tuple[str, str, str]]:
    for cls in FaultClass:
        if cls is not FaultClass.REQUEST:
            yield "fault", str(cls), ""
            yield "warning", str(cls), ""
    yield "fault", "a-class-of-next-year", ""
    for request in REQUESTS:
        yield ("opportunity" if request == "grow" else "request"), str(FaultClass.REQUEST), request


def _read_as(state: bytes, kind: str, cls: str, detail: str) -> bytes:
    job: JobState = read_state(state)
    assert job.incident is not None
    job.incident.kind = kind
    named = next(iter(job.membership.nodes), "") if detail in ("drain", "evict") else ""
    nodes = ((named,) if named else ()) if kind in ("request", "opportunity") else job.incident.fault.nodes
    job.incident.fault = msgspec.structs.replace(
        job.incident.fault, cls=cls, detail=detail or job.incident.fault.detail, nodes=nodes
    )
    if kind == "request":
        request = OperatorRequest(seq=job.seq, command=detail, who="user@host", why="", exit_code=5, node=named)
        job.requests.pending, job.requests.stop = (None, request) if detail == "stop" else (request, None)
    return to_json(job)


# -- histories --------------------------------------------------------------------------------------------------------


def _faults_of_all_kinds(job: JobDriver) -> None:
    job.start()
    job.make_steps(10)
    for exitcode, message in (
        (-9, ""),
        (-11, ""),
        (1, "ValueError: bad batch"),
        (1, "ValueError: bad batch"),
        (1, "RuntimeError: Connection closed by peer [127.0.0.1]:52710"),
        (1, "torch.OutOfMemoryError: CUDA out of memory."),
    ):
        if job.state.phase == "running":
            job.fail(_member(job), exitcode=exitcode, message=message, tail=f"{message}\n")
            _calm_down(job)


def _failed_before_the_first_step(job: JobDriver) -> None:
    job.start()
    job.step = 0
    for _ in range(3):
        if job.state.phase == "running":
            job.fail(_member(job), exitcode=1, message="ModuleNotFoundError: No module named 'nemo'")
            _calm_down(job, step=False)


def _nodes_lost(job: JobDriver) -> None:
    if not job.state.run:
        job.start()
    job.commit()
    job.make_steps(5)
    for _ in range(2):
        if job.state.phase == "running":
            job.lose(_member(job))
            _calm_down(job)


def _no_capacity(job: JobDriver) -> None:
    job.start()
    job.capacity = 0
    job.health = {"node1": "faulty"}
    _nodes_lost(job)


def _refused(job: JobDriver) -> None:
    job.refuses = {"*": ("save_checkpoint", "park_workers", "pause_workers")}
    _observed(job)
    _operator_requests(job)


def _observed(job: JobDriver) -> None:
    job.start()
    job.make_steps(100)
    job.commit(50)
    job.commit()
    job.make_steps(100)
    kinds = ("uce", "collective", "hang", "norm", "straggler", "loss-spike", "loss-nan", "norm-spike")
    for kind in (*kinds, "preemption-notice", "maintenance-notice"):
        if job.state.phase == "running":
            job.observe(_member(job), kind, values={"factor": 2.0, "steps": 50.0, "lag_s": 1.0})
            _calm_down(job)


def _operator_requests(job: JobDriver) -> None:
    if not job.state.run:
        job.start()
    for command, node in (("pause", ""), ("resume", ""), ("checkpoint", ""), ("drain", "node2"), ("evict", "node1")):
        if not job.ended:
            job.command(command, node)
            _calm_down(job)
    if not job.ended:
        job.stop()
        _calm_down(job)


def _nodes_stand_by(job: JobDriver) -> None:
    _nodes_lost(job)
    if not job.ended:
        job.join("node7")
        _calm_down(job)


def _member(job: JobDriver) -> str:
    assert job.state.rounds.world is not None
    return job.state.rounds.world.members[-1].node


def _calm_down(job: JobDriver, *, step: bool = True) -> None:
    """Let the job proceed, through deadlines, until its incident is over."""
    for _ in range(100):
        job.settle(step=step)
        if job.ended or job.state.incident is None or not job.wait():
            return


_HISTORIES: tuple[Callable[[JobDriver], None], ...] = (
    _faults_of_all_kinds,
    _failed_before_the_first_step,
    _nodes_lost,
    _no_capacity,
    _observed,
    _operator_requests,
    _refused,
    _nodes_stand_by,
)
