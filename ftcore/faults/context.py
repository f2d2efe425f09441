"""Context of a line: where an exception was raised, and the lines before and after.

A rule reads one line only. The context may lower a line's weight, or change its class to one that costs no node.
House rule: it never makes a node suspect.
"""

import re
from collections.abc import Sequence

import attrs

from ftcore.faults.rule import COLLATERAL, UNSURE, Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

F = FaultClass

PASSED_ON_LINES = 40
"""Largest distance, in lines, between a cause and the exception that passes it on: a chain of tracebacks."""
PASSED_ON_MIN = 10
"""Lines of less weight only repeat other lines."""
_PASSED_ON = (F.COLLATERAL, F.NETWORK_RENDEZVOUS, F.NCCL_TIMEOUT, F.NCCL_REMOTE_ERROR)
_EXCEPTIONS = ("exception", "exception-short")
_PASSES_ON = (*_EXCEPTIONS, "exception-c")
_WAITS = ("watchdog", "desync", "barrier")
_ENDS = ("crash", "sigabrt", "abort")
_PID = re.compile(r"(?i)\bpid:? (\d{1,9})")
ABORTED_MIN = 2
"""Processes that aborted without a cause: one may have a bug, several were ended by their watchdogs."""
FOLLOWS = 14
"""Weight of a line that a process prints while its watchdog ends it."""
KILLED_BEFORE_WAITS = 54


@attrs.frozen
class ExceptionOrigin:
    """Where a traceback ends.

    Args:
        path: path of the file.
        function: the function.
        source: the source line, if it was printed.
    """

    path: str
    function: str
    source: str = ""


@attrs.frozen
class LineMatch:
    """A line that a rule matched.

    Args:
        number: its number in the text.
        rule: the rule.
        speaker: the rank, task or host that wrote it; empty: not known.
        blamed: the rank, task or host that it blames; empty: none.
        line: the line.
        weight: the rule's, unless the context changes it.
    """

    number: int
    rule: Rule
    speaker: str
    blamed: str
    line: str
    weight: int


@attrs.frozen(kw_only=True)
class ExceptionContext:
    """A rule for exceptions by the place where they were raised.

    Args:
        name: unique.
        line: pattern of the exception's line.
        path: pattern of the file's path; empty: any.
        function: pattern of the function; empty: any.
        source: pattern of the source line; empty: any.
        cls: the class.
        detail: the finer distinction.
        role: as of a rule.
        weight: as of a rule.
        action: as of a rule.
        reason: why.
        example: path, function, source line and exception line that it must match.
    """

    name: str
    line: str
    path: str = ""
    function: str = ""
    source: str = ""
    cls: FaultClass
    detail: str
    role: str = "root"
    weight: int = 60
    action: Remedy | None = None
    reason: str
    example: tuple[str, str, str, str]

    def reads(self, place: ExceptionOrigin, line: str) -> bool:
        """Whether this rule matches the place and the line of an exception."""
        return all(
            not pattern or re.search(pattern, text) is not None
            for pattern, text in (
                (self.line, line[:400]),
                (self.path, place.path[-400:]),
                (self.function, place.function[:200]),
                (self.source, place.source[:400]),
            )
        )


_ANY = r"\b[A-Z]\w{1,60}(?:Error|Exception|Failure|Timeout)\b"
_VALUES = r"\b(?:Assertion|Value|Type|Key|Attribute|Runtime|NotImplemented)Error\b"

SETTINGS: tuple[ExceptionContext, ...] = (
    ExceptionContext(
        name="raised-in-imports",
        line=_ANY,
        path=r"<frozen importlib|/importlib/",
        cls=F.CONFIG_ENV,
        detail="import",
        weight=79,
        reason="raised during an import: a package or module is missing, or not the version that the program needs",
        example=("<frozen importlib._bootstrap>", "_gcd_import", "", "ValueError: Empty module name"),
    ),
    ExceptionContext(
        name="raised-in-configuration",
        line=_VALUES,
        path=r"(?:^|[/_])(?:arguments?|args|arg_?utils|config|configs|configuration|options?|hparams|settings|flags"
        r"|argparse)(?:_\w{1,20})?\.py$|/(?:hydra|omegaconf|yaml|argparse|absl/flags|jsonargparse|pydantic)/",
        cls=F.CONFIG_ENV,
        detail="configuration",
        weight=62,
        reason="raised where the program reads or checks its arguments",
        example=("/w/lib/config.py", "load", "", "ValueError: lr: 'x'"),
    ),
    ExceptionContext(
        name="raised-by-a-check-of-arguments",
        line=_VALUES,
        function=r"^(?:_?(?:validate|check|parse|verify)_(?:\w{1,30}_)?(?:args|arguments?|config\w*|options|params)"
        r"|__post_init__)$",
        cls=F.CONFIG_ENV,
        detail="configuration",
        weight=62,
        reason="raised by a function that validates arguments",
        example=("/w/train.py", "validate_args", "", "AssertionError"),
    ),
    ExceptionContext(
        name="assertion-on-arguments",
        line=r"AssertionError\s*$",
        function=r"^__init__$",
        cls=F.CONFIG_ENV,
        detail="configuration",
        weight=62,
        reason="a constructor asserts its arguments, without a message",
        example=("/w/data/dataset.py", "__init__", "assert num_samples > 0", "AssertionError"),
    ),
    ExceptionContext(
        name="assertion-on-options",
        line=r"AssertionError\s*$",
        source=r"^assert .{0,200}\b(?:args|cfg|config|opts?|hparams|flags)\.",
        cls=F.CONFIG_ENV,
        detail="configuration",
        weight=62,
        reason="the assertion tests an option, without a message",
        example=("/w/train.py", "main", "assert args.lr > 0", "AssertionError"),
    ),
    ExceptionContext(
        name="raised-between-processes",
        line=r"\b(?:EOFError|ConnectionRefusedError|ConnectionAbortedError|FileNotFoundError)\b",
        path=r"/multiprocessing/(?:connection|managers|queues|resource_sharer|reduction|popen\w{0,20})\.py$",
        cls=F.COLLATERAL,
        detail="peer-gone",
        role=COLLATERAL,
        weight=20,
        reason="the process at the other end of a pipe has ended",
        example=("/usr/lib/python3.10/multiprocessing/connection.py", "_recv", "", "EOFError"),
    ),
    ExceptionContext(
        name="raised-in-rendezvous",
        line=r"\b(?:Runtime|Value|Timeout|Connection\w{0,10}|OS|Exception)(?:Error)?\b",
        path=r"/torch/distributed/(?:rendezvous|elastic/rendezvous/\w{1,40})\.py$",
        cls=F.NETWORK_RENDEZVOUS,
        detail="rendezvous",
        role=UNSURE,
        weight=60,
        reason="raised during the rendezvous",
        example=(
            "/opt/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py",
            "_create_c10d_store",
            "",
            "RuntimeError: unexpected answer",
        ),
    ),
    ExceptionContext(
        name="raised-in-a-network-library",
        line=_ANY,
        path=r"-packages/(?:urllib3|requests|httpx|httpcore|aiohttp|grpc|kubernetes|etcd3?|redis|websockets?|paramiko)/"
        r"|/python3\.\d{1,2}/(?:socket|ssl|http/client|urllib/request)\.py$",
        cls=F.NETWORK_RENDEZVOUS,
        detail="service",
        role=UNSURE,
        weight=61,
        reason="raised in a network client library",
        example=("/usr/lib/python3.10/site-packages/httpx/_client.py", "send", "", "RemoteProtocolError: x"),
    ),
    ExceptionContext(
        name="raised-in-an-object-store",
        line=r"\b(?:[A-Z]\w{0,40})?(?:Timeout|Connect|Connection|IO|OS|Client|Http|Runtime|Server)\w{0,20}Error\b",
        path=r"-packages/(?:fsspec|s3fs|gcsfs|adlfs|botocore|boto3|s3transfer|smart_open|aiobotocore|petrel_client|oss2)/",
        cls=F.STORAGE,
        detail="object-store",
        weight=78,
        reason="raised in an object store's client library",
        example=("/usr/lib/python3.10/site-packages/s3fs/core.py", "_call_s3", "", "OSError: x"),
    ),
)
"""In order of precedence; only for exceptions that match no more specific rule."""


def rule_at_place(rule: Rule, place: ExceptionOrigin | None, line: str) -> Rule:
    """Return the rule for a line, or the rule for the place of its traceback if that is more specific."""
    if place is None or rule.name not in ("checkpoint-file", "download", *_EXCEPTIONS):
        return rule
    for setting in SETTINGS:
        if (rule.name in _EXCEPTIONS or setting.cls is F.COLLATERAL) and setting.reads(place, line):
            return Rule(
                name=setting.name,
                pattern=rule.pattern,
                cls=setting.cls,
                detail=setting.detail,
                role=setting.role,
                weight=setting.weight,
                reason=setting.reason,
                example=line,
                action=setting.action,
            )
    return rule


def adjust_weights(found: Sequence[LineMatch]) -> list[LineMatch]:
    """Return the matched lines with weights adjusted to the lines before them.

    - A SIGKILL before the timeouts is their cause.
    - An exception soon after a line of the same rank about a peer, a timeout or the network only passes that on.
    - A watchdog that times out ends its process in the middle of its kernels: a CUDA error or a crash that follows is
      a consequence.
    """
    waits = [f.number for f in found if f.rule.detail in _WAITS]
    passed_on: dict[str, int] = {}
    timed_out: dict[str, int] = {}
    adjusted = []
    for f in found:
        weight = f.weight
        if f.rule.detail == "sigkill" and waits and f.number < waits[0]:
            weight = KILLED_BEFORE_WAITS
        elif f.rule.cls in _PASSED_ON and weight >= PASSED_ON_MIN:
            passed_on[f.speaker] = f.number
            if f.rule.detail in _WAITS:
                timed_out[f.speaker] = f.number
        elif f.rule.name in _PASSES_ON and f.number - passed_on.get(f.speaker, -PASSED_ON_LINES) < PASSED_ON_LINES:
            weight = 11
        elif timed_out and _is_consequence(f, timed_out):
            weight = FOLLOWS
        adjusted.append(attrs.evolve(f, weight=weight) if weight != f.weight else f)
    return adjusted


def aborted_together(found: Sequence[LineMatch]) -> bool:
    """Whether several processes aborted."""
    aborts = {pid[1] for f in found if f.rule.name == "exit-sigabrt" and (pid := _PID.search(f.line)) is not None}
    return len(aborts) >= ABORTED_MIN


def _is_consequence(f: LineMatch, timed_out: dict[str, int]) -> bool:
    """Whether a line is from the end of a process whose watchdog had timed out before."""
    if f.rule.cls is F.CUDA_STICKY:
        return f.speaker in timed_out or f.rule.detail in ("other", "library", "seen-by-nccl")
    return f.rule.detail in _ENDS and (f.speaker in timed_out or not f.speaker)
