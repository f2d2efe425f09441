"""Events of policies: the active chain, and every verdict."""

from typing import Any

import msgspec

from ftcore.commands import Command
from ftcore.events.payload import Payload
from ftcore.events.registry import decision, fact


class ChainEntry(Payload, frozen=True, kw_only=True):
    """One entry of the active chain, with the value of every option.

    Args:
        policy: name of the policy.
        options: its options, including defaults.
        faults: the fault classes that it is asked about; empty: all.
        required: the user named it, so a job that cannot carry it out is refused at the start.
        external: distribution and version of a policy from another package; empty: the policy is part of ftcore.
        kinds: the kinds of incidents that an external policy handles; empty: all.
        needs: the abilities that an external policy needs.
    """

    policy: str
    options: dict[str, Any]
    faults: tuple[str, ...] = ()
    required: bool = False
    external: str = ""
    kinds: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def is_for(self, cls: str) -> bool:
        """Whether the policy is asked about a class of faults."""
        return not self.faults or cls in self.faults


CHECKPOINTS_KEPT = 3
"""Checkpoints that are kept if the policy file does not say it."""


class DeclaredCheckpoints(Payload, frozen=True, kw_only=True):
    """The policy file's settings for checkpoints; 0: not set.

    Args:
        kept: how many of the newest checkpoints are kept, the newest included.
        keep_every: the first checkpoint of every so many steps is kept as well.
        memory: most bytes of a node for saved state.
        bandwidth: most bytes per second that a node writes to storage, and likewise that it copies to other nodes.
        copies: copies of each staged shard in the memory of other nodes; here, 0 means none.
        min_interval: least seconds between two saves to storage, where the master chooses.
        max_interval: most seconds between them.
    """

    kept: int = 0
    keep_every: int = 0
    memory: int = 0
    bandwidth: int = 0
    copies: int = 1
    min_interval: float = 0.0
    max_interval: float = 0.0


class DeclaredHangs(Payload, frozen=True, kw_only=True):
    """The policy file's limits for hangs, in seconds; 0: not set.

    Args:
        ceiling: no step for this long is a hang.
        first_step: limit of the time before a round's first step, outside of the other sections.
        evaluation: limit of an evaluation.
        checkpoint: limit of a checkpoint.
        compile: limit of a compilation.
        set_up: limit of the set-up of process groups.
    """

    ceiling: float = 0.0
    first_step: float = 0.0
    evaluation: float = 0.0
    checkpoint: float = 0.0
    compile: float = 0.0
    set_up: float = 0.0


class Declared(Payload, frozen=True, kw_only=True):
    """The policy file's declarations about the job.

    Args:
        replicas: which ranks hold the same state: ``all``, ``none``, those of each of the ``groups``, or ``layout``:
            it follows from ``data_parallel`` and ``optimizer_shard``; empty: not declared.
        groups: groups of global ranks that hold the same state.
        abilities: declared abilities of the script that the release that read the file supports; ``replicas`` is one of
            them if there are replicas.
        unsupported: declared abilities without effect: the running script reports them, or an earlier release did not
            implement them.
        checkpoint_every: steps between two checkpoints; 0: not declared.
        checkpoints: settings for checkpoints.
        health: when nodes are checked: ``auto``, ``always``, ``suspect`` or ``never``.
        check_s: seconds that one stage of a check may take.
        data_parallel: ranks over which the batch is split; 0: not declared.
        optimizer_shard: data-parallel ranks over which parameters or the optimizer's state are split; 0: not declared.
        hangs: limits for hangs.
    """

    replicas: str = ""
    groups: tuple[tuple[int, ...], ...] = ()
    abilities: tuple[str, ...] = ()
    checkpoint_every: int = 0
    checkpoints: DeclaredCheckpoints = msgspec.field(default_factory=DeclaredCheckpoints)
    health: str = "auto"
    check_s: float = 60.0
    unsupported: tuple[str, ...] = ()
    data_parallel: int = 0
    optimizer_shard: int = 0
    hangs: DeclaredHangs = msgspec.field(default_factory=DeclaredHangs)


def _checkpoints_as_group(fields: dict[str, Any]) -> dict[str, Any]:
    declared = dict(fields.get("declared", {}))
    kept = declared.pop("checkpoints_kept", 0)
    return {**fields, "declared": {**declared, "checkpoints": {"kept": kept}}}


@fact("policy.loaded", version=2, upcasters={1: _checkpoints_as_group})
class PolicyLoaded(Payload, frozen=True, kw_only=True):
    """A policy chain takes effect.

    Args:
        source: file name, or ``default``.
        text: the full text of the file; empty for the default.
        digest: hex digest of the text.
        chain: the entries, highest priority first.
        declared: the file's declarations about the job.
        rules: the file's own classification rules, unchanged.
    """

    source: str
    text: str
    digest: str
    chain: tuple[ChainEntry, ...]
    declared: Declared = msgspec.field(default_factory=Declared)
    rules: tuple[dict[str, Any], ...] = ()


class Terms(Payload, frozen=True, kw_only=True):
    """Details of a plan beyond its kind; the defaults are those of a plain restart.

    Args:
        survivors: ``stop`` the surviving workers, or ``park`` them: they wait alive for the next round, in which each
            rank loads the newest complete state.
        exclude: nodes that are left out of the next round and released.
        quarantine: those of them that must not join again.
        avoid: standby nodes that are left out of the next round and stay standby.
        replace: nodes that the platform replaces.
        want: number of nodes of the next round; 0: as many as in the last one.
        patience_s: seconds that the plan waits for that many nodes before it fails. None: the job's time constants.
        check: nodes whose health is checked before the next round: empty for none, ``suspect`` or ``all``.
        command: the order to the living members, for a plan ``in_place``.
        then: what follows when the orders of a plan ``in_place`` are answered: ``continue`` with the chain, ``pause``
            (the request is fulfilled, the job waits) or ``resolve`` (it is fulfilled, the job continues). ``verify``
            for any other plan: its outcome is awaited.
        rollback_to: the training resumes from the checkpoint of this step, which is not the newest.
        tolerate: the number of the step whose abnormal values are accepted from the next round on; 0: none.
        skip: amount of data to skip, from that step or ``skip_after`` on.
        skip_unit: ``batches`` or ``tokens``.
        skip_after: the step after which data is skipped, for a plan that does not go back to a checkpoint.
        lr_factor: factor for the learning rate from the next round on, for a plan that goes back; 1: it stays.
        alert: the message of the alert, for a plan ``tell``.
        severity: its severity: ``info``, ``warning`` or ``critical``.
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
    skip_after: int | None = None
    alert: str = ""
    severity: str = "warning"
    tolerate: int = 0
    lr_factor: float = 1.0


@decision("policy.considered")
class PolicyConsidered(Payload, frozen=True, kw_only=True):
    """A policy of the chain was asked.

    Args:
        policy: its name.
        verdict: ``take`` (it returns a plan) or ``pass`` (it leaves the incident to the next policy).
        reason: why.
        revision: the incident's revision that it was asked about.
        plan: for ``take``: the kind of the plan: ``restart``, ``in_place``, ``tell`` or ``end``.
        grace_s: grace period between TERM and KILL under the plan, in seconds.
        deadline_s: seconds from a round's start within which the plan must succeed.
        outcome: for ``end``: how the job will end (``failed`` or ``stopped``).
        exit_code: for ``end``: the job's exit code.
        wait_s: for ``take``: seconds of back-off before the plan's new round.
        attempt: for ``take``: number of this attempt in the window of the policy's budget.
        terms: details of the plan beyond its kind; None: none.
        again_s: for a pass on an opportunity: seconds after which to ask again; 0: when the state changes.
        at_commit: for a pass on an opportunity: it is asked again as soon as a checkpoint is committed.
        lacks: for a pass: the abilities that the job lacks. Recorded once; until that changes, later incidents of the
            run skip the policy without an event.
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
class PlanApplied(Payload, frozen=True, kw_only=True):
    """Every order of a plan that leaves the processes in place was answered.

    Args:
        policy: the policy of the plan.
        then: what follows, as in ``Terms``.
    """

    policy: str
    then: str


@decision("alert.raised", ignorable=True)
class AlertRaised(Payload, frozen=True, kw_only=True):
    """An alert to send; no recovery waits for it.

    Args:
        severity: ``info``, ``warning`` or ``critical``.
        title: one line.
        text: the message.
    """

    severity: str
    title: str
    text: str


@fact("alert.sent", ignorable=True)
class AlertSent(Payload, frozen=True, kw_only=True):
    """The result of sending an alert.

    Args:
        alert: seq of the ``alert.raised``.
        ok: every target accepted it.
        error: what went wrong.
    """

    alert: int
    ok: bool
    error: str = ""


@fact("ability.declared")
class AbilityDeclared(Payload, frozen=True, kw_only=True):
    """The abilities of a part of the job, beyond starting and stopping processes.

    Args:
        source: ``platform``, ``script``, or a node's name.
        abilities: all abilities of this source, named as in ``docs/reference/policies.md``.
    """

    source: str
    abilities: tuple[str, ...]


@fact("policy.answered")
class PolicyAnswered(Payload, frozen=True, kw_only=True):
    """The answer of an external policy; it becomes a verdict like any other.

    Args:
        effect: the order to ask it.
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
class PolicyFaulted(Payload, frozen=True, kw_only=True):
    """An external policy raised an exception, timed out or returned an invalid answer; it counts as a pass.

    Args:
        effect: the order to ask it.
        policy: its name.
        error: what happened, in one line.
    """

    effect: str
    policy: str
    error: str
