"""Events of workers, reported by their agent: for all workers of a node at once, or for one that failed."""

import attrs

from ftcore.events.registry import decision, fact

EVIDENCE_BYTES_MAX = 4096
"""Raw evidence in one event; the rest stays in the worker's log files on its node."""


@attrs.frozen(kw_only=True)
class WorkerError:
    """What a worker's error file told (``TORCHELASTIC_ERROR_FILE``, written by ``@record`` or by ftcore's own hook).

    Args:
        message: the exception, ``Type: text``.
        py_callstack: the traceback, its end if it was long.
        timestamp: seconds since the epoch, as the worker's clock said.
    """

    message: str
    py_callstack: str = ""
    timestamp: int | None = None


@attrs.frozen(kw_only=True)
class StepTimes:
    """The last steps of a worker before a fault.

    Args:
        rank: its global rank.
        step: the last step that it completed.
        ago_ms: milliseconds from its completion to the fact's own ``at``.
        steps: completed steps, by entry, oldest first: 1, or more where several were made between two looks.
        took_ms: milliseconds that they took together, by entry.
    """

    rank: int
    step: int
    ago_ms: int
    steps: tuple[int, ...] = ()
    took_ms: tuple[int, ...] = ()


@fact("workers.started")
@attrs.frozen(kw_only=True)
class WorkersStarted:
    """All workers of a node's slice run.

    Args:
        node: the node.
        incarnation: its agent's life.
        round: the round they belong to.
        pids: process ids, by local rank.
        how: ``fork`` from the warm process or ``exec`` of a fresh interpreter, with the reason for the latter.
    """

    node: str
    incarnation: str
    round: int
    pids: tuple[int, ...]
    how: str


@fact("workers.stepped")
@attrs.frozen(kw_only=True)
class WorkersStepped:
    """Every worker of the node completed its first step of the round.

    Args:
        node: the node.
        incarnation: its agent's life.
        round: the round.
        step: the smallest first step completed.
        absolute: the step counts from the start of the training, not from the start of the process.
    """

    node: str
    incarnation: str
    round: int
    step: int
    absolute: bool


@fact("worker.failed")
@attrs.frozen(kw_only=True)
class WorkerFailed:
    """A worker ended by itself with a code other than 0, or by a signal that ftcore did not send.

    Args:
        node: the node.
        incarnation: its agent's life.
        round: the round it belonged to.
        rank: its global rank.
        local_rank: its rank on the node.
        pid: its process id.
        exitcode: the exit code; negative: the signal that ended it.
        error: what its error file told, if it wrote one.
        tail: its last lines of output, at most ``EVIDENCE_BYTES_MAX`` bytes.
        log_dir: where its whole output lies on the node.
        step: the last step it completed, if it reported any.
        absolute: the step counts from the start of the training, not from the start of the process.
        last: the last steps of the node's workers before it, its own first; empty if none was completed since another
            fact of the round told of them.
    """

    node: str
    incarnation: str
    round: int
    rank: int
    local_rank: int
    pid: int
    exitcode: int
    error: WorkerError | None = None
    tail: str = ""
    log_dir: str = ""
    step: int | None = None
    absolute: bool = False
    last: tuple[StepTimes, ...] = ()


@fact("workers.stopped")
@attrs.frozen(kw_only=True)
class WorkersStopped:
    """No worker of the round or of any before it runs on the node any more.

    Args:
        node: the node.
        incarnation: its agent's life.
        round: the round that was stopped.
        exitcodes: of the workers that were stopped, by local rank; None for one that had ended before.
        effect: the order that is answered, or empty if the agent stopped them by itself.
        reason: why, if the agent stopped them by itself.
    """

    node: str
    incarnation: str
    round: int
    exitcodes: tuple[int | None, ...]
    effect: str = ""
    reason: str = ""


@fact("workers.finished")
@attrs.frozen(kw_only=True)
class WorkersFinished:
    """All workers of the node ended with code 0.

    Args:
        node: the node.
        incarnation: its agent's life.
        round: the round.
        step: the last step that all of them completed, if they reported any.
    """

    node: str
    incarnation: str
    round: int
    step: int | None = None


@fact("workers.unstartable")
@attrs.frozen(kw_only=True)
class WorkersUnstartable:
    """The agent could not start its workers; those that had started were stopped.

    Args:
        node: the node.
        incarnation: its agent's life.
        round: the round.
        effect: the order that is answered.
        error: what went wrong, for a person.
    """

    node: str
    incarnation: str
    round: int
    effect: str
    error: str


CURVES = ("loss-spike", "loss-nan", "loss-divergence", "norm", "norm-spike", "norm-nan", "norm-divergence")
"""Kinds of ``fault.observed`` that tell of a figure of the whole job, which each of its ranks may report."""

LASTING_NAN = "loss-nan-lasting"
"""Kind of ``fault.observed``: the loss was not finite in ``NAN_STEPS`` reported steps in a row; opens no incident."""

NAN_STEPS = 10

ADVISORY = ("straggler", *CURVES, "preemption-notice")
"""Kinds of ``fault.observed`` that do not interrupt the training: what nobody takes is dropped."""


@fact("fault.observed")
@attrs.frozen(kw_only=True)
class FaultObserved:
    """Something other than the end of a process shows a fault.

    Args:
        node: the node it was seen on.
        incarnation: its agent's life.
        round: the round that was hit.
        source: who saw it: ``worker``, ``detector``, ``log``, ``kernel``, ``health``, ``platform`` or ``storage``.
        kind: what was seen, as ``uce``, ``collective``, ``hang``, ``straggler``, ``loss-spike``, ``loss-nan``,
            ``loss-nan-lasting``, ``loss-divergence``, ``norm``, ``norm-spike``, ``norm-nan``, ``norm-divergence``,
            ``preemption-notice``; empty where the message alone tells.
        rank: the global rank it is about; -1: the whole node.
        message: the words of whoever saw it.
        step: the last step completed before it.
        absolute: that step counts from the start of the training.
        values: the figures, by name.
        last: the last steps of the node's workers, as in ``worker.failed``.
    """

    node: str
    incarnation: str
    round: int
    source: str
    kind: str
    rank: int = -1
    message: str = ""
    step: int | None = None
    absolute: bool = False
    values: dict[str, float] = attrs.field(factory=dict)
    last: tuple[StepTimes, ...] = ()


@fact("log.matched", ignorable=True)
@attrs.frozen(kw_only=True)
class LogMatched:
    """A worker's output, or the kernel's, has lines that a rule knows; training may well go on.

    Args:
        node: the node.
        incarnation: its agent's life.
        round: the round.
        rank: global rank of the worker that wrote it; -1: the node's kernel.
        rule: name of the rule.
        cls: the class that it speaks for.
        line: the first such line, cut to 512 bytes.
        count: such lines since the last report.
    """

    node: str
    incarnation: str
    round: int
    rank: int
    rule: str
    cls: str
    line: str
    count: int = 1


@attrs.frozen(kw_only=True)
class Stand:
    """Ranks that do the same while no step is completed.

    Times are seconds. Of several ranks ``still_s``, ``held_s``, ``silent_s`` and ``ends_s`` are the smallest, so that
    what is concluded from them holds for each.

    Args:
        ranks: global ranks, the lowest ones.
        count: how many ranks they are.
        state: ``runs``, ``waits`` (does not run), ``stopped`` (by a signal), ``traced`` (by a debugger), ``disk`` (in
            uninterruptible sleep), ``ended`` (its script has come to its end, its process has not) or ``gone`` (its
            process ended with code 0).
        place: the innermost line of its own script, as ``FILE:LINE (FUNCTION)``; empty: not known.
        op: the collective that it is inside of; empty: none that is known.
        waits: what it waits for: ``sleep`` (its timer, see ``ends_s``), ``lock`` (another thread), ``outside`` (a file,
            a socket, a process); empty: not known.
        still_s: since its last progress of any kind: CPU, I/O and network bytes, Python frames.
        held_s: since its Python frames changed.
        silent_s: since its last step, backward pass or report; None: it never made one.
        overdue: its next step is overdue by what was learned of its steps.
        ends_s: until its sleep or timed wait ends by itself; None: no such end is known.
        timeout_s: the timeout of its process group; None: not known.
        stack: its Python frames, innermost first, cut.
        stacks: the file on its node that holds its whole stacks, of the first rank; empty: there is none.
    """

    ranks: tuple[int, ...]
    count: int = 1
    state: str = "waits"
    place: str = ""
    op: str = ""
    waits: str = ""
    still_s: float = 0.0
    held_s: float = 0.0
    silent_s: float | None = None
    overdue: bool = False
    ends_s: float | None = None
    timeout_s: float | None = None
    stack: str = ""
    stacks: str = ""


@attrs.frozen(kw_only=True)
class Cut:
    """A node whose workers get no answer from another node of the world: the kernel sends to it again and again.

    Args:
        node: the node that gets no answer.
        peer: the node that it sends to.
        connections: connections between the two that this is true of.
        silent_s: seconds, at least, without an answer; of the longest.
        retries: the most retransmissions of one segment.
        ranks: global ranks of the node's workers whose connections they are.
    """

    node: str
    peer: str
    connections: int
    silent_s: float
    retries: int
    ranks: tuple[int, ...] = ()


@fact("workers.stood")
@attrs.frozen(kw_only=True)
class WorkersStood:
    """No step is completed: what all ranks of the round do instead, as their agents found it.

    Args:
        round: the round.
        stands: ranks by what they do; ranks of which nothing is known are in none of them.
        cuts: nodes whose workers get no answer from other nodes, the first ones.
    """

    round: int
    stands: tuple[Stand, ...]
    cuts: tuple[Cut, ...] = ()


@fact("workers.went_on")
@attrs.frozen(kw_only=True)
class WorkersWentOn:
    """Steps are completed again, although nobody intervened.

    Args:
        round: the round.
        gap_s: seconds without a step.
    """

    round: int
    gap_s: float


@decision("standstill.judged")
@attrs.frozen(kw_only=True)
class StandstillJudged:
    """What a standstill is taken for.

    Args:
        round: the round.
        verdict: ``alert`` (it may be healthy: people are told, and workers left alone) or ``hang``.
        cause: why, as ``faults/standstill.py`` names it.
        node: of the first rank that is to blame; empty: not known.
        ranks: the ranks to blame, the first ones; empty: not known.
        message: who does what, for people.
        stack: Python frames of the first rank to blame, innermost first.
        stacks: the file that holds the whole stacks of that rank, or of the first one, on its node; each rank of which
            something is known has one beside its output.
        apart: nodes that cannot reach each other, ``node`` first; empty for any other cause.
    """

    round: int
    verdict: str
    cause: str
    node: str = ""
    ranks: tuple[int, ...] = ()
    message: str = ""
    stack: str = ""
    stacks: str = ""
    apart: tuple[str, ...] = ()
