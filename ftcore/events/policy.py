"""Events of policies: which chain is in force, and every verdict."""

from typing import Any

import attrs

from ftcore.commands import Command
from ftcore.events.registry import decision, fact


@attrs.frozen(kw_only=True)
class ChainEntry:
    """One entry of the chain as it is in force, every option with its value.

    Args:
        policy: name of the policy.
        options: its options, defaults filled in.
        faults: the classes that it is asked about; empty: all.
        required: somebody named it, so a job that cannot carry it out is refused at the start.
        external: where a policy that is not ftcore's comes from: distribution and version; empty: ftcore.
        kinds: what a policy that is not ftcore's deals with; empty: everything.
        needs: the abilities that a policy that is not ftcore's needs.
    """

    policy: str
    options: dict[str, Any]
    faults: tuple[str, ...] = ()
    required: bool = False
    external: str = ""
    kinds: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def is_for(self, cls: str) -> bool:
        """Whether it is asked about a class of faults."""
        return not self.faults or cls in self.faults


@attrs.frozen(kw_only=True)
class Declared:
    """What the policy file says of the job, because nobody else can.

    Args:
        replicas: which ranks hold the same state: ``all`` of them, ``none``, those of each of the ``groups``, or empty:
            nothing was said.
        groups: global ranks that hold the same, group by group.
        abilities: what the script can do by the file's word, and the release that read the file can carry out;
            ``replicas`` is among them where there are some.
        unsupported: abilities that the file declares and that release cannot carry out; they count for nothing.
        checkpoint_every: steps between two checkpoints; 0: not said.
        checkpoints_kept: checkpoints that are kept, the newest included; 0: not said.
        health: when nodes are checked: ``auto``, ``always``, ``suspect`` or ``never``.
        check_s: seconds that one stage of a check may take.
    """

    replicas: str = ""
    groups: tuple[tuple[int, ...], ...] = ()
    abilities: tuple[str, ...] = ()
    checkpoint_every: int = 0
    checkpoints_kept: int = 0
    health: str = "auto"
    check_s: float = 60.0
    unsupported: tuple[str, ...] = ()


@fact("policy.loaded")
@attrs.frozen(kw_only=True)
class PolicyLoaded:
    """A chain of policies is in force from here on.

    Args:
        source: file name, or ``default``.
        text: the file's text, whole; empty for the default.
        digest: hex digest of the text.
        chain: the entries, highest priority first.
        declared: what the file says of the job.
        rules: the file's own rules of classification, as it has them.
    """

    source: str
    text: str
    digest: str
    chain: tuple[ChainEntry, ...]
    declared: Declared = attrs.field(factory=Declared)
    rules: tuple[dict[str, Any], ...] = ()


@attrs.frozen(kw_only=True)
class Terms:
    """What a plan is to do beyond its kind; the defaults are those of a plain restart.

    Args:
        survivors: ``stop`` the workers that live, or ``park`` them with their state for the next round.
        exclude: nodes that the next round must do without; they are released.
        quarantine: those of them that must not come back.
        avoid: nodes that stand by and are not taken into the next round; they go on standing by.
        replace: nodes for whose places the platform launches others.
        want: nodes of the next round; 0: as many as the last one had.
        patience_s: seconds that the plan waits for so many; then it has failed. None: the job's own time constants.
        check: check the health of the nodes before the next round starts: none, ``suspect`` ones or ``all``.
        command: what is ordered from the living members, for a plan ``in_place``.
        then: what follows when the plan's orders are answered: ``verify`` its outcome, ``continue`` with the chain,
            ``pause`` (the request is fulfilled, the job waits) or ``resolve`` (it is fulfilled, the job goes on).
        rollback_to: the training resumes from the checkpoint of this step, which is not the newest.
        skip: so much of the data from that step on is left out.
        skip_unit: ``batches`` or ``tokens``.
        alert: the message to people, for a plan ``tell``.
        severity: ``info``, ``warning`` or ``critical``, for that message.
    """

    survivors: str = "stop"
    exclude: tuple[str, ...] = ()
    quarantine: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    want: int = 0
    patience_s: float | None = None
    check: str = ""
    command: Command | None = None
    then: str = "verify"
    rollback_to: int | None = None
    skip: int = 0
    skip_unit: str = "batches"
    alert: str = ""
    severity: str = "warning"


@decision("policy.considered")
@attrs.frozen(kw_only=True)
class PolicyConsidered:
    """A policy of the chain was asked.

    Args:
        policy: its name.
        verdict: ``take`` or ``pass``.
        reason: why, for people.
        revision: the incident's revision that it was asked about.
        plan: what it will do, if it was taken: ``restart``, ``in_place``, ``tell`` or ``end``.
        grace_s: seconds that workers get between TERM and KILL under the plan.
        deadline_s: seconds from a round's start in which the plan must bring its outcome.
        outcome: for ``end``: how the job will end (``failed`` or ``stopped``).
        exit_code: for ``end``: the job's exit code.
        wait_s: seconds of back-off before the plan's new round, if it was taken.
        attempt: the how-manieth attempt of this policy in its budget's window, if it was taken.
        terms: what the plan does beyond its kind; None: nothing.
        again_s: for a pass on an opportunity: seconds after which it is worth to ask again; 0: when something changes.
        at_commit: for a pass on an opportunity: it is asked again as soon as a checkpoint is committed.
        lacks: for a pass: the abilities that the job is missing. It is recorded once; as long as nothing changes, later
            incidents of the run pass the policy over without an event.
    """

    policy: str
    verdict: str
    reason: str
    revision: int
    plan: str = ""
    grace_s: float = 0.0
    deadline_s: float = 0.0
    outcome: str = ""
    exit_code: int = 0
    wait_s: float = 0.0
    attempt: int | None = None
    terms: Terms | None = None
    again_s: float = 0.0
    at_commit: bool = False
    lacks: tuple[str, ...] = ()


@decision("plan.applied")
@attrs.frozen(kw_only=True)
class PlanApplied:
    """Every order of a plan that leaves the processes in place was answered.

    Args:
        policy: the policy whose plan it is.
        then: what follows, as in ``Terms``.
    """

    policy: str
    then: str


@decision("alert.raised", ignorable=True)
@attrs.frozen(kw_only=True)
class AlertRaised:
    """People are to be told; the sending is nobody's recovery and is not waited for.

    Args:
        severity: ``info``, ``warning`` or ``critical``.
        title: one line.
        text: the message.
    """

    severity: str
    title: str
    text: str


@fact("alert.sent", ignorable=True)
@attrs.frozen(kw_only=True)
class AlertSent:
    """What came of sending an alert.

    Args:
        alert: seq of the ``alert.raised``.
        ok: every target took it.
        error: what went wrong.
    """

    alert: int
    ok: bool
    error: str = ""


@fact("ability.declared")
@attrs.frozen(kw_only=True)
class AbilityDeclared:
    """What a part of the job can carry out, beyond starting and stopping processes.

    Args:
        source: who says so: ``platform``, ``script``, or a node's name.
        abilities: names, as in ``docs/reference/policies.md``; all that this source has.
    """

    source: str
    abilities: tuple[str, ...]


@fact("policy.answered")
@attrs.frozen(kw_only=True)
class PolicyAnswered:
    """What a policy that is not ftcore's own said; it becomes a verdict like any other.

    Args:
        effect: the order that asked it.
        policy: its name.
        verdict, reason, plan, grace_s, deadline_s, outcome, exit_code, wait_s, terms, again_s: as in
            ``policy.considered``.
    """

    effect: str
    policy: str
    verdict: str
    reason: str
    plan: str = ""
    grace_s: float = 0.0
    deadline_s: float = 0.0
    outcome: str = ""
    exit_code: int = 0
    wait_s: float = 0.0
    terms: Terms | None = None
    again_s: float = 0.0


@fact("policy.faulted")
@attrs.frozen(kw_only=True)
class PolicyFaulted:
    """A policy that is not ftcore's own raised, took too long or answered nonsense; it counts as a pass.

    Args:
        effect: the order that asked it.
        policy: its name.
        error: what happened, in one line.
    """

    effect: str
    policy: str
    error: str
