"""What the place and the neighbours of a line add to what its rule says.

A rule reads one line. Here stands what only the text around it tells: in which file an exception was raised, and what
the same process had said before. House rule: a context makes a line mean less, or another class that costs no node;
it never speaks for a node's fault.
"""

import re
from collections.abc import Sequence

import attrs

from ftcore.faults.rule import COLLATERAL, UNSURE, Rule
from ftcore.faults.taxonomy import Action, FaultClass

F = FaultClass

PASSED_ON_LINES = 40
"""Between a cause and the exception that hands it on: a chain of tracebacks."""
PASSED_ON_MIN = 10
"""Weight below which a line repeats what stands elsewhere."""
_PASSED_ON = (F.COLLATERAL, F.NETWORK_RENDEZVOUS, F.NCCL_TIMEOUT, F.NCCL_REMOTE_ERROR)
_EXCEPTIONS = ("exception", "exception-short")
_PASSES_ON = (*_EXCEPTIONS, "exception-c")
_WAITS = ("watchdog", "desync", "barrier")
_ENDS = ("crash", "sigabrt", "abort")
_PID = re.compile(r"(?i)\bpid:? (\d{1,9})")
ABORTED_MIN = 2
"""Processes that aborted without a word of the cause: one may have a bug, several were taken down by watchdogs."""
FOLLOWS = 14
"""Weight of a line that is how a process ends once it gave up."""
KILLED_BEFORE_WAITS = 54


@attrs.frozen
class Place:
    """Where a traceback ends.

    Args:
        path: of the file.
        function: in it.
        source: the line that stands there, if it was printed.
    """

    path: str
    function: str
    source: str = ""


@attrs.frozen
class Found:
    """A line that a rule reads.

    Args:
        at: its number in the text.
        rule: the rule.
        who: who wrote it, if it says.
        names: whom it blames, if anybody.
        line: the line.
        weight: the rule's, unless the context changes it.
    """

    at: int
    rule: Rule
    who: str
    names: str
    line: str
    weight: int


@attrs.frozen(kw_only=True)
class Setting:
    """What an exception means that was raised in such a place.

    Args:
        name: unique.
        line: pattern of the exception's line.
        path: pattern of the file.
        function: pattern of the function; any, if empty.
        source: pattern of the source; any, if empty.
        cls: the class.
        detail: the finer distinction.
        role: as a rule's.
        weight: as a rule's.
        action: as a rule's.
        reason: why.
        example: path, function, source and line that it must read.
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
    action: Action | None = None
    reason: str
    example: tuple[str, str, str, str]

    def reads(self, place: Place, line: str) -> bool:
        """Whether the exception was raised in such a place."""
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

SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="raised-in-imports",
        line=_ANY,
        path=r"<frozen importlib|/importlib/",
        cls=F.CONFIG_ENV,
        detail="import",
        weight=79,
        reason="raised while a module was looked for: what the program needs is not installed as it needs it",
        example=("<frozen importlib._bootstrap>", "_gcd_import", "", "ValueError: Empty module name"),
    ),
    Setting(
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
    Setting(
        name="raised-by-a-check-of-arguments",
        line=_VALUES,
        function=r"^(?:_?(?:validate|check|parse|verify)_(?:\w{1,30}_)?(?:args|arguments?|config\w*|options|params)"
        r"|__post_init__)$",
        cls=F.CONFIG_ENV,
        detail="configuration",
        weight=62,
        reason="raised by a function that checks what was given",
        example=("/w/train.py", "validate_args", "", "AssertionError"),
    ),
    Setting(
        name="assertion-on-arguments",
        line=r"AssertionError\s*$",
        function=r"^__init__$",
        cls=F.CONFIG_ENV,
        detail="configuration",
        weight=62,
        reason="a constructor asserts what it was given and has no words for it",
        example=("/w/data/dataset.py", "__init__", "assert num_samples > 0", "AssertionError"),
    ),
    Setting(
        name="assertion-on-options",
        line=r"AssertionError\s*$",
        source=r"^assert .{0,200}\b(?:args|cfg|config|opts?|hparams|flags)\.",
        cls=F.CONFIG_ENV,
        detail="configuration",
        weight=62,
        reason="the assertion tests an option and has no words for it",
        example=("/w/train.py", "main", "assert args.lr > 0", "AssertionError"),
    ),
    Setting(
        name="raised-between-processes",
        line=r"\b(?:EOFError|ConnectionRefusedError|ConnectionAbortedError|FileNotFoundError)\b",
        path=r"/multiprocessing/(?:connection|managers|queues|resource_sharer|reduction|popen\w{0,20})\.py$",
        cls=F.COLLATERAL,
        detail="peer-gone",
        role=COLLATERAL,
        weight=20,
        reason="the process at the other end of a pipe is gone",
        example=("/usr/lib/python3.10/multiprocessing/connection.py", "_recv", "", "EOFError"),
    ),
    Setting(
        name="raised-in-rendezvous",
        line=r"\b(?:Runtime|Value|Timeout|Connection\w{0,10}|OS|Exception)(?:Error)?\b",
        path=r"/torch/distributed/(?:rendezvous|elastic/rendezvous/\w{1,40})\.py$",
        cls=F.NETWORK_RENDEZVOUS,
        detail="rendezvous",
        role=UNSURE,
        weight=60,
        reason="raised while the nodes look for each other",
        example=(
            "/opt/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py",
            "_create_c10d_store",
            "",
            "RuntimeError: unexpected answer",
        ),
    ),
    Setting(
        name="raised-in-a-network-library",
        line=_ANY,
        path=r"-packages/(?:urllib3|requests|httpx|httpcore|aiohttp|grpc|kubernetes|etcd3?|redis|websockets?|paramiko)/"
        r"|/python3\.\d{1,2}/(?:socket|ssl|http/client|urllib/request)\.py$",
        cls=F.NETWORK_RENDEZVOUS,
        detail="service",
        role=UNSURE,
        weight=61,
        reason="raised in a library that talks over the network",
        example=("/usr/lib/python3.10/site-packages/httpx/_client.py", "send", "", "RemoteProtocolError: x"),
    ),
    Setting(
        name="raised-in-an-object-store",
        line=r"\b(?:[A-Z]\w{0,40})?(?:Timeout|Connect|Connection|IO|OS|Client|Http|Runtime|Server)\w{0,20}Error\b",
        path=r"-packages/(?:fsspec|s3fs|gcsfs|adlfs|botocore|boto3|s3transfer|smart_open|aiobotocore|petrel_client|oss2)/",
        cls=F.STORAGE,
        detail="object-store",
        weight=78,
        reason="raised in a library of an object store",
        example=("/usr/lib/python3.10/site-packages/s3fs/core.py", "_call_s3", "", "OSError: x"),
    ),
)
"""In their order; only for exceptions that no rule knows."""


def at_place(rule: Rule, place: Place | None, line: str) -> Rule:
    """The rule for a line, or what the place of its traceback makes of it."""
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


def weighed(found: Sequence[Found]) -> list[Found]:
    """What was found, with the weights that its neighbours give.

    A kill that came before the waits that ran out was their cause. An exception of the program right behind a line of
    the same rank that tells of a peer, a wait or a network is how the program passed that on. After its watchdog gave
    up, a process is taken down in the middle of its kernels: the CUDA error and the crash that follow are that.
    """
    waits = [f.at for f in found if f.rule.detail in _WAITS]
    passed_on: dict[str, int] = {}
    gave_up: dict[str, int] = {}
    made = []
    for f in found:
        weight = f.weight
        if f.rule.detail == "sigkill" and waits and f.at < waits[0]:
            weight = KILLED_BEFORE_WAITS
        elif f.rule.cls in _PASSED_ON and weight >= PASSED_ON_MIN:
            passed_on[f.who] = f.at
            if f.rule.detail in _WAITS:
                gave_up[f.who] = f.at
        elif f.rule.name in _PASSES_ON and f.at - passed_on.get(f.who, -PASSED_ON_LINES) < PASSED_ON_LINES:
            weight = 11
        elif gave_up and _is_take_down(f, gave_up):
            weight = FOLLOWS
        made.append(attrs.evolve(f, weight=weight) if weight != f.weight else f)
    return made


def aborted_together(found: Sequence[Found]) -> bool:
    """Whether all that is told are aborts, of several processes."""
    aborts = {pid[1] for f in found if f.rule.name == "exit-sigabrt" and (pid := _PID.search(f.line)) is not None}
    return len(aborts) >= ABORTED_MIN


def _is_take_down(f: Found, gave_up: dict[str, int]) -> bool:
    """Whether a line is how a process ends whose watchdog gave up before."""
    if f.rule.cls is F.CUDA_STICKY:
        return f.who in gave_up or f.rule.detail in ("other", "library", "seen-by-nccl")
    return f.rule.detail in _ENDS and (f.who in gave_up or not f.who)
