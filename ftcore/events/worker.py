"""Events of workers, reported by their agent: for all workers of a node, or for a failed one."""

import msgspec

from ftcore.events.payload import Payload
from ftcore.events.registry import decision, fact

EVIDENCE_BYTES_MAX = 4096
"""Raw evidence in one event; the rest stays in the worker's log files on its node."""


class WorkerError(Payload, frozen=True, kw_only=True):
    """Contents of a worker's error file (``TORCHELASTIC_ERROR_FILE``, written by ``@record`` or by ftcore's own hook).

    Args:
        message: the exception, ``Type: text``.
        py_callstack: the traceback; of a long one its end.
        timestamp: seconds since the epoch, by the worker's clock.
    """

    message: str
    py_callstack: str = ""
    timestamp: int | None = None


class StepTimes(Payload, frozen=True, kw_only=True):
    """The last steps of a worker before a fault.

    Args:
        rank: its global rank.
        step: the last step that it completed.
        ago_ms: milliseconds from its completion to the fact's own ``at``.
        steps: completed steps, by entry, oldest first: 1, or more if several were completed between two samples.
        took_ms: milliseconds that these steps took together, by entry.
    """

    rank: int
    step: int
    ago_ms: int
    steps: tuple[int, ...] = ()
    took_ms: tuple[int, ...] = ()


@fact("workers.started")
class WorkersStarted(Payload, frozen=True, kw_only=True):
    """All workers of a node's slice run.

    Args:
        node: the node.
        incarnation: the agent's incarnation.
        round: the round they belong to.
        pids: process IDs, by local rank.
        how: ``fork`` from the warm process, or ``exec`` of a fresh interpreter, with the reason; ``parked`` if none was
            started: all of them had left an earlier round; ``prepared``: they waited for their first one on standby.
        log_dir: directory of the round's output on the node, with a directory ``rank_R`` for each worker; empty:
            another launcher writes the output, or an earlier release wrote this event.
    """

    node: str
    incarnation: str
    round: int
    pids: tuple[int, ...]
    how: str
    log_dir: str = ""


@fact("workers.stepped")
class WorkersStepped(Payload, frozen=True, kw_only=True):
    """Every worker of the node completed its first step of the round.

    Args:
        node: the node.
        incarnation: the agent's incarnation.
        round: the round.
        step: the smallest first step completed.
        absolute: the step counts from the start of the training, not from the start of the process.
        abilities: what every worker of the node can do on request, named as in ``docs/reference/policies.md``.
    """

    node: str
    incarnation: str
    round: int
    step: int
    absolute: bool
    abilities: tuple[str, ...] = ()


@fact("worker.failed")
class WorkerFailed(Payload, frozen=True, kw_only=True):
    """A worker ended with a non-zero exit code, or by a signal that ftcore did not send.

    Args:
        node: the node.
        incarnation: the agent's incarnation.
        round: the round it belonged to.
        rank: its global rank.
        local_rank: its rank on the node.
        pid: its process ID.
        exitcode: the exit code; negative: the signal that ended it.
        error: the contents of its error file, if it wrote one.
        tail: its last lines of output, at most ``EVIDENCE_BYTES_MAX`` bytes.
        log_dir: directory of its complete output on the node.
        step: the last step it completed, if it reported any.
        absolute: the step counts from the start of the training, not from the start of the process.
        last: the last steps of the node's workers before the failure, its own first; empty if none was completed since
            an earlier fact of the round reported them.
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
class WorkersStopped(Payload, frozen=True, kw_only=True):
    """No worker of the round or of an earlier one runs on the node any more.

    Args:
        node: the node.
        incarnation: the agent's incarnation.
        round: the round that was stopped.
        exitcodes: of the stopped workers, by local rank; None for a worker that had ended before.
        effect: the order that this answers; empty if the agent stopped them without an order.
        reason: why, if there was no order.
        finished: local ranks of the workers that had ended with code 0 before the stop.
    """

    node: str
    incarnation: str
    round: int
    exitcodes: tuple[int | None, ...]
    effect: str = ""
    reason: str = ""
    finished: tuple[int, ...] = ()


@fact("workers.finished")
class WorkersFinished(Payload, frozen=True, kw_only=True):
    """All workers of the node ended with exit code 0.

    Args:
        node: the node.
        incarnation: the agent's incarnation.
        round: the round.
        step: the last step that all of them completed, if they reported any.
    """

    node: str
    incarnation: str
    round: int
    step: int | None = None


@fact("workers.unstartable")
class WorkersUnstartable(Payload, frozen=True, kw_only=True):
    """The agent could not start its workers; those that had started were stopped.

    Args:
        node: the node.
        incarnation: the agent's incarnation.
        round: the round.
        effect: the order that this answers.
        error: what went wrong.
    """

    node: str
    incarnation: str
    round: int
    effect: str
    error: str


CURVES = ("loss-spike", "loss-nan", "loss-divergence", "norm", "norm-spike", "norm-nan", "norm-divergence")
"""Kinds of ``fault.observed`` about a metric of the whole job; any rank may report it."""

AGREED = ("loss-spike", "loss-divergence")
"""Kinds that open an incident only if ranks agree (``states/spikes.py``); a rank may see one in its own samples."""

LASTING_NAN = "loss-nan-lasting"
"""Kind of ``fault.observed``: the loss was not finite in ``NAN_STEPS`` reported steps in a row; opens no incident."""

NAN_STEPS = 10

ADVISORY = ("straggler", "slowdown", *CURVES, "preemption-notice")
"""Kinds of ``fault.observed`` that do not interrupt the training: if no policy takes them, they are dropped."""

MAINTENANCE = "maintenance-notice"
"""Kind of ``fault.observed``: the platform will pause or slow the node's machine, until ``disruption.ended``."""
STORAGE_AWAY = "storage-away"
"""The storage refuses checkpoints (``checkpoint.failed``), until one is written."""
DISRUPTIVE = (MAINTENANCE, STORAGE_AWAY)
"""Kinds of disruptions, which last until a fact ends them."""


@fact("fault.observed")
class FaultObserved(Payload, frozen=True, kw_only=True):
    """Evidence of a fault other than the end of a process.

    Args:
        node: the node on which it was observed.
        incarnation: the agent's incarnation.
        round: the affected round.
        source: the observer: ``worker``, ``detector``, ``log``, ``kernel``, ``health``, ``platform``, ``storage``
            or ``agent``.
        kind: ``uce``, ``collective``, ``hang``, ``straggler``, ``slowdown``, ``loss-spike``, ``loss-nan``,
            ``loss-nan-lasting``, ``loss-divergence``, ``norm``, ``norm-spike``, ``norm-nan``, ``norm-divergence``,
            ``preemption-notice`` or ``maintenance-notice``; empty: see the message.
        rank: the affected global rank; -1: the whole node.
        message: the observer's message.
        step: the last step completed before it.
        absolute: that step counts from the start of the training.
        values: the measured values, by name. Of a loss, ``ranks``: the node's ranks that found the same at that step;
            ``reporting``: its ranks that report a loss.
        last: the last steps of the node's workers, as in ``worker.failed``.
        phase: of a straggler: the phase of the step in which it is slow, such as ``backward``; empty: not known.
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
    values: dict[str, float] = msgspec.field(default_factory=dict)
    last: tuple[StepTimes, ...] = ()
    phase: str = ""


@fact("disruption.ended")
class DisruptionEnded(Payload, frozen=True, kw_only=True):
    """What ``fault.observed`` reported as a disruption is over.

    Args:
        node: the node that it was about.
        incarnation: the agent's incarnation.
        kind: ``maintenance-notice``.
        message: the observer's message.
    """

    node: str
    incarnation: str
    kind: str
    message: str = ""


KERNEL_RANK = -1
"""The rank in ``log.matched`` of a line of the kernel log."""


@fact("log.matched", ignorable=True)
class LogMatched(Payload, frozen=True, kw_only=True):
    """A rule matched lines of a worker's output or of the kernel log; training may continue.

    Args:
        node: the node.
        incarnation: the agent's incarnation.
        round: the round.
        rank: global rank of the worker that wrote them; -1: the node's kernel.
        rule: name of the rule.
        cls: the class of faults that it indicates.
        line: the first such line, truncated to 512 bytes.
        count: matching lines since the last report.
    """

    node: str
    incarnation: str
    round: int
    rank: int
    rule: str
    cls: str
    line: str
    count: int = 1


class RankState(Payload, frozen=True, kw_only=True):
    """Ranks that are in the same state while no step is completed.

    Times are seconds. Of several ranks ``still_s``, ``held_s``, ``silent_s`` and ``ends_s`` are the smallest, so that
    a conclusion from them holds for each.

    Args:
        ranks: global ranks, the lowest ones.
        count: number of ranks.
        state: ``runs``, ``waits`` (does not run), ``stopped`` (by a signal), ``traced`` (by a debugger), ``disk`` (in
            uninterruptible sleep), ``ended`` (its script has finished, its process has not) or ``gone`` (its process
            ended with code 0).
        place: the innermost line of its own script, as ``FILE:LINE (FUNCTION)``; empty: not known.
        op: the collective that it is inside of; empty: none is known.
        waits: what it waits for: ``sleep`` (its timer, see ``ends_s``), ``lock`` (another thread), ``outside`` (a file,
            a socket, a process); empty: not known.
        still_s: since its last progress of any kind: CPU, I/O and network bytes, Python frames.
        held_s: since its Python frames changed.
        silent_s: since its last step, backward pass or report; None: it never made one.
        overdue: its next step is overdue, compared with its earlier steps.
        ends_s: until its sleep or timed wait ends by itself; None: no such end is known.
        timeout_s: the timeout of its process group; None: not known.
        stack: its Python frames, innermost first, truncated.
        stacks: the file on its node with the complete stacks of the first rank; empty: none.
        section: the section of the script that it is in (``ftcore.worker.section``), ``first step`` before its first
            step; empty: none, or not known.
        section_s: since the section began; None: it is in no section.
        limit_s: the limit of ``section_s``; in no section that of ``silent_s``; None: there is none yet. Of several
            ranks the largest.
        declared: the script has declared that limit; else it is learned.
        step: the last step that it completed, if it is the same for all of these ranks; None: none, or not known.
        call: number of the newest collective that it has begun, of process group ``group``; None: not known.
        group: see ``call``.
        trains: steps are expected of it: it has created an optimizer.
        loader: what the worker process of its data loader does that it waits for; ``waits`` and ``still_s`` are those
            of that process then. Empty: it does not wait for one, or that process is active.
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
    section: str = ""
    section_s: float | None = None
    limit_s: float | None = None
    declared: bool = False
    step: int | None = None
    call: int | None = None
    group: str = ""
    trains: bool = False
    loader: str = ""


class Cut(Payload, frozen=True, kw_only=True):
    """A node whose workers get no answer from another node of the world: its kernel keeps retransmitting.

    Args:
        node: the node that gets no answer.
        peer: the node that it sends to.
        connections: connections between the two without an answer.
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
class WorkersStood(Payload, frozen=True, kw_only=True):
    """No step is completed; the states of all ranks of the round, as their agents found them.

    Args:
        round: the round.
        stands: ranks by state; ranks of unknown state are left out.
        cuts: nodes whose workers get no answer from other nodes, the first ones.
    """

    round: int
    stands: tuple[RankState, ...]
    cuts: tuple[Cut, ...] = ()


@fact("workers.went_on")
class WorkersWentOn(Payload, frozen=True, kw_only=True):
    """Steps are completed again without intervention.

    Args:
        round: the round.
        gap_s: seconds without a step.
    """

    round: int
    gap_s: float


@decision("standstill.judged")
class StandstillJudged(Payload, frozen=True, kw_only=True):
    """The verdict on a standstill.

    Args:
        round: the round.
        verdict: ``alert`` (it may be healthy: an alert is sent, and the workers keep running) or ``hang``.
        cause: why, one of the causes in ``faults/standstill.py``.
        node: node of the first rank to blame; empty: not known.
        ranks: the ranks to blame, the first ones; empty: not known.
        message: the states of the ranks, as text.
        stack: Python frames of the first rank to blame, innermost first.
        stacks: the file on its node with the complete stacks of that rank, or of the first rank; every rank of known
            state has such a file beside its output.
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
