"""The command line of ``ftrun``: torchrun's flags under torchrun's names, and ftcore's own.

Both spellings (``--nproc-per-node``, ``--nproc_per_node``) and torchrun's ``PET_*`` environment variables work.

House rule: imported before the warm process is started (``ftrun.py``), so it imports nothing heavy.
"""

import argparse
import difflib
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ftcore.batch import BatchRule
from ftcore.cli.torchrun_flags import Treatment, having
from ftcore.cli.watching_flags import add_watching
from ftcore.runtime.warm.protocol import DEFAULT_PRELOAD
from ftcore.version import __version__

EPILOG = """\
examples:
  ftrun --standalone --nproc-per-node 8 train.py --lr 3e-4     one machine, eight workers
  ftrun --local-nodes 2 train.py                               two nodes on this machine, to try out recovery
  ftrun --nnodes 4 --node-rank $RANK --job llm --store etcd://e1:2379,e2:2379 train.py
                                                               on each of four hosts
  ftrun --policy policy.yaml -m my.trainer                     with your own policy file

during the job, or after it:
  ftctl status | ftctl events --follow | ftctl incidents | ftctl explain

exit codes: 0 the job succeeded; 1 it failed; 2 wrong usage or input; 3 store or master unreachable;
            5 stopped, resumable; 130 interrupted
"""

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Default signals that shut the job down gracefully, as in torchrun."""

UNHANDLED = ("SIGKILL", "SIGSTOP", "SIGCHLD")
"""Signals that no process can handle, and SIGCHLD, which the agent needs."""

SHUTDOWN_TIMEOUT_ENV = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""torchrun's default of ``--shutdown-timeout``."""


class _Refuse(argparse.Action):
    """Refuses a flag of torchrun, with the reason."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Exit with code 2."""
        parser.error(f"{self.option_strings[0]} is not supported: {self.help}")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors name ``--help`` and the nearest flag."""

    def _unknown(self, flag: str) -> str:
        shown = (action for action in self._actions if action.help is not argparse.SUPPRESS)
        known = [name for action in shown for name in action.option_strings]
        begun = [name for name in known if flag.startswith("--") and name.startswith(flag)]
        near = begun or difflib.get_close_matches(flag, known, n=1)
        return f"{flag}: no such flag" + (f"; did you mean {near[0]}?" if near else "")

    def error(self, message: str) -> NoReturn:
        """Print one message, with the nearest flag for an unknown one; exit with code 2."""
        _, unknown, arguments = message.partition("unrecognized arguments: ")
        if unknown:
            message = self._unknown(arguments.split()[0].partition("=")[0])
        message = re.sub(r"^argument ([^\s/:]+)\S*: ", r"\1: ", message)
        self.exit(2, f"{self.prog}: {message}\ntry: {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``ftrun``."""
    parser = Parser(
        prog="ftrun",
        description="Run a distributed PyTorch job and keep it running through faults.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ftrun {__version__}")
    _add_job(parser)
    _add_world(parser)
    _add_batch(parser)
    _add_log(parser)
    _add_running(parser)
    _add_output(parser)
    add_watching(parser, _add)
    ignored = parser.add_argument_group("torchrun's flags that are accepted and ignored, with a note")
    for name, why in having(Treatment.UNUSED).items():
        _add(ignored, f"--{name}", help=why)
    refused = parser.add_argument_group("torchrun's flags that are refused")
    for name, why in having(Treatment.REFUSED).items():
        _add(refused, f"--{name}", action=_Refuse, help=why)
    parser.add_argument("script", help="script, module (-m) or program (--no-python) to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    _defaults_from_environment(parser)
    for hidden in ("--local-place", "--local-parent", "--local-life"):
        parser.add_argument(hidden, type=_whole, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--local-launch", default="", help=argparse.SUPPRESS)
    return parser


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a number") from None


def _add(group: argparse._ActionsContainer, *names: str, **kwargs: object) -> None:
    """Add an option under both spellings of its name."""
    spelled: list[str] = []
    for name in names:
        dashed = name if not name.startswith("--") else "--" + name[2:].replace("_", "-")
        spelled.append(dashed)
        if name.startswith("--") and "-" in dashed[2:]:
            spelled.append("--" + dashed[2:].replace("-", "_"))
    group.add_argument(*spelled, **kwargs)  # type: ignore[arg-type]


def _add_job(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job")
    _add(group, "--job", help="name of the job and of its log (default: from the script's name and the time)")
    _add(group, "--rdzv-id", help="torchrun's name for --job")
    _add(
        group,
        "--store",
        help="log store: sqlite:///DIR, etcd://H:P,H:P/PREFIX (default: $FTCORE_STORE, else in ~/.local/state)",
    )
    _add(group, "--rdzv-endpoint", help="with an etcd:// URL: torchrun's name for --store")
    _add(group, "--policy", metavar="FILE", help="policy file: the chain of recovery policies, in YAML")
    _add(group, "--max-restarts", type=_whole, help="budget of the policy process_restart; overrides the policy file")


def _add_world(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("nodes and ranks")
    _add(group, "--standalone", action="store_true", help="one node on this machine")
    _add(
        group,
        "--local-nodes",
        type=_whole,
        metavar="N",
        help="run N nodes on this machine, each with its own agent; lost nodes are replaced",
    )
    _add(
        group,
        "--platform",
        metavar="URL",
        help="platform that launches nodes: local:?OPTIONS with --local-nodes, or the URL of an adapter (default: "
        "$FTCORE_PLATFORM)",
    )
    _add(group, "--nnodes", help="number of nodes, or MIN:MAX (default: 1, or N of --local-nodes)")
    _add(group, "--nproc-per-node", default="1", help="workers per node: a number, cpu, gpu or auto")
    _add(group, "--node-rank", type=_whole, help="this node's position among the nodes, from 0")
    _add(group, "--node-unit", type=_whole, default=1, metavar="K", help="the number of nodes is a multiple of K")
    _add(
        group,
        "--join-window",
        type=_number,
        metavar="SECONDS",
        help="with MIN:MAX: time that MIN nodes wait for more nodes at the start (default: 30)",
    )
    _add(group, "--node-sizes", metavar="N,N,...", help="the permitted numbers of nodes, as 2,4,8")
    _add(
        group,
        "--node-labels",
        metavar="NAME=VALUE,...",
        help="labels for this node's location, as switch=s1,rack=r2",
    )
    _add(
        group,
        "--order-by",
        metavar="NAME",
        help="label that orders the ranks, so that nodes with the same value are neighbours; the same on every node",
    )
    _add(
        group,
        "--master-port",
        type=port,
        default=0,
        metavar="PORT",
        help="preferred port of the workers' store, for init_method=tcp://... (default: a free port)",
    )
    _add(group, "--node-id", help="this node's name (default: the host name)")
    _add(group, "--local-addr", help="address at which other nodes reach this node")
    _add(
        group,
        "--leadership",
        default="auto",
        choices=("auto", "never", "only"),
        help="whether a master may run on this node: auto, never (workers only), only (no workers); default: auto",
    )
    _add(group, "--role", default="default", help="role of the workers, the same on all nodes")


def _add_batch(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the global batch, for scripts that call `global_batch` of ftcore.worker")
    _add(group, "--global-batch", type=_whole, metavar="N", help="samples of one optimizer step over all ranks")
    _add(
        group,
        "--micro-batch",
        type=positive,
        metavar="N",
        help="samples of one forward and backward, a divisor of the global batch (default: all samples of the rank)",
    )
    _add(
        group,
        "--batch-rule",
        choices=[rule.value for rule in BatchRule],
        help="in a smaller world: keep the global batch (default); the same, and form only worlds that divide it; or "
        "shrink it, and scale the learning rate with it (linear-lr) or with its square root (sqrt-lr)",
    )


def _add_log(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job's log")
    _add(
        group,
        "--archive",
        metavar="DIR",
        help="directory to which old events are moved, to keep the store small; shared by all nodes that may lead "
        "(default: $FTCORE_ARCHIVE, else no events are moved)",
    )
    _add(
        group,
        "--keep-events",
        type=positive,
        default=100_000,
        metavar="N",
        help="number of events kept in the store (default: %(default)s)",
    )
    _add(
        group,
        "--snapshot-events",
        type=positive,
        default=20_000,
        metavar="N",
        help="number of events between two snapshots of the job's state (default: %(default)s)",
    )


def whole(text: str) -> int:
    """A number of at least zero; raises ``ValueError``, as argparse expects."""
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def port(text: str) -> int:
    """A TCP port, or 0 for a free one; raises ``ValueError``, as argparse expects."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError(text)
    return value


def comma_separated(text: str) -> list[str]:
    """Split ``apple,orange`` into two texts; a double comma is a literal comma, as in torchrun."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",") if part]


def signals(parser: argparse.ArgumentParser, text: str) -> tuple[signal.Signals, ...]:
    """``SIGTERM,SIGUSR1`` as signals."""
    found = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in signal.Signals.__members__ or name in UNHANDLED:
            parser.error(f"--signals-to-handle: found {name!r}; expected names such as SIGTERM or SIGUSR1")
        found.append(signal.Signals[name])
    return tuple(dict.fromkeys(found))


def positive(text: str) -> int:
    """A number above zero; raises ``ValueError``, as argparse expects."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _add_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workers")
    _add(group, "-m", "--module", action="store_true", help="run the script as `python -m` would")
    _add(group, "--no-python", action="store_true", help="run the script as a program")
    _add(
        group,
        "--leave-within",
        metavar="TIME",
        help="time between the platform's SIGTERM and SIGKILL, such as 30s or 2m; workers use it to save",
    )
    _add(
        group,
        "--checkpoints",
        default=os.environ.get("FTCORE_CHECKPOINTS"),
        metavar="DIRECTORY|URL",
        help="where ftcore writes checkpoints of a script that registers its state (`ftcore.worker.join`), seen by all "
        "nodes under this name (default: $FTCORE_CHECKPOINTS, otherwise they are kept in memory only)",
    )
    _add(group, "--run-path", action="store_true", help="run the script in a running interpreter; ftrun always does")
    _add(group, "--virtual-local-rank", action="store_true", help="each worker has LOCAL_RANK 0 and sees one GPU")
    _add(
        group,
        "--signals-to-handle",
        default=",".join(SIGNALS),
        metavar="NAME,...",
        help="signals that shut the job down gracefully (default: %(default)s)",
    )
    _add(
        group,
        "--shutdown-timeout",
        type=whole,
        default=os.environ.get(SHUTDOWN_TIMEOUT_ENV),
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL of workers; overrides the policy file",
    )
    _add(group, "--preload", metavar="MODULES", help="comma-separated modules to import before workers are forked")
    _add(group, "--no-preload", action="store_true", help="start every worker as a new interpreter")
    help_ = "run the script up to where it asks for its rank, where it waits for a later round: on nodes on standby"
    _add(group, "--prepare", choices=("standby", "always"), help=f"{help_}, or always, also beside running workers")


def seconds(parser: argparse.ArgumentParser, flag: str, text: str | None) -> float | None:
    """``30``, ``90s``, ``2m`` as seconds; None if not given."""
    if text is None:
        return None
    from ftcore.platforms.options import seconds_of

    try:
        return seconds_of(text)
    except ValueError:
        parser.error(f"{flag}: found {text!r}; expected a time such as 30s or 2m")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    _add(group, "--log-dir", help="directory for the workers' logs (default: in ~/.local/state/ftcore/logs)")
    _add(
        group,
        "-r",
        "--redirects",
        default="0",
        help="streams written only to files: 0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:STREAM,...",
    )
    _add(group, "-t", "--tee", default="0", help="streams also printed, with a prefix: values as --redirects")
    for stream in ("stdout", "stderr"):
        _add(
            group,
            f"--duplicate-{stream}-filters",
            type=comma_separated,
            default=[],
            metavar="TEXT,...",
            help=f"copy lines of {stream} that contain one of these texts to filtered_{stream}.log; write a comma "
            "inside a text as two",
        )
    _add(group, "--local-ranks-filter", default="", help="print the output of these local ranks only, as 0,2")
    _add(
        group,
        "--log-level",
        default="warning",
        choices=("debug", "info", "warning", "error"),
        help="log level of ftcore's own messages; default: warning",
    )


def _defaults_from_environment(parser: argparse.ArgumentParser) -> None:
    """Take defaults of flags from the environment, as torchrun does: ``PET_<NAME>`` for ``--<name>``."""
    for action in parser._actions:
        value = os.environ.get(f"PET_{action.dest.upper()}")
        if value is None or not action.option_strings:
            continue
        if isinstance(action, argparse._StoreTrueAction):
            action.default = value == "1"
        else:
            try:
                action.default = action.type(value) if callable(action.type) else value
            except (ValueError, argparse.ArgumentTypeError):
                parser.error(f"PET_{action.dest.upper()}: found {value!r}; expected a number, as for the flag")


def stream_map(parser: argparse.ArgumentParser, flag: str, text: str) -> int | dict[int, int]:
    """``3`` or ``0:1,1:2`` as torchrun reads it."""
    try:
        if ":" not in text:
            return _stream(text)
        pairs = (pair.split(":") for pair in text.split(","))
        return {int(rank): _stream(stream) for rank, stream in pairs}
    except ValueError:
        parser.error(f"{flag}: found {text!r}; expected 0, 1, 2, 3, or LOCAL_RANK:STREAM pairs such as 0:1,1:2")


def _stream(text: str) -> int:
    value = int(text)
    if value not in (0, 1, 2, 3):
        raise ValueError(text)
    return value


def node_range(parser: argparse.ArgumentParser, text: str) -> tuple[int, int]:
    """``4`` or ``2:4`` as ``(min, max)``."""
    low, colon, high = text.partition(":")
    try:
        bounds = int(low), int(high if colon else low)
    except ValueError:
        bounds = 0, 0
    if not 1 <= bounds[0] <= bounds[1]:
        parser.error(f"--nnodes: found {text!r}; expected a number of nodes, or MIN:MAX with 1 <= MIN <= MAX")
    return bounds


def node_sizes(parser: argparse.ArgumentParser, text: str | None) -> tuple[int, ...]:
    """Parse ``2,4,8`` into sorted numbers; empty if the flag is not given."""
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        parser.error(f"--node-sizes: found {text!r}; expected numbers of nodes such as 2,4,8")
    return tuple(sorted({int(part) for part in parts}))


LABELS_MAX = 16
LABEL_CHARS_MAX = 128


def node_labels(parser: argparse.ArgumentParser, text: str | None) -> dict[str, str]:
    """``switch=s1,rack=r2`` as a dictionary."""
    labels: dict[str, str] = {}
    for pair in text.split(",") if text else ():
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value) or name in labels:
            parser.error(
                f"--node-labels: found {pair!r} in {text!r}; expected NAME=VALUE pairs such as switch=s1,rack=r2"
            )
        labels[name] = value
    if len(labels) > LABELS_MAX or any(len(text) > LABEL_CHARS_MAX for text in (*labels, *labels.values())):
        parser.error(
            f"--node-labels: expected at most {LABELS_MAX} labels, with names and values of at most {LABEL_CHARS_MAX} "
            "characters"
        )
    return labels


def label_name(parser: argparse.ArgumentParser, text: str | None) -> str:
    """The name of a label; empty if none is given."""
    if text and ("=" in text or "," in text):
        parser.error(f"--order-by: found {text!r}; expected the name of one label, such as {text.partition('=')[0]}")
    return text or ""


def ranks(parser: argparse.ArgumentParser, text: str) -> Sequence[int] | None:
    """``0,2`` as local ranks; None if empty."""
    if not text:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        parser.error(f"--local-ranks-filter: found {text!r}; expected local ranks such as 0,2")


def slots(parser: argparse.ArgumentParser, text: str) -> int:
    """The number of workers for ``--nproc-per-node``; GPUs are counted without torch, whose import takes a second."""
    if text.isdigit() and int(text) > 0:
        return int(text)
    if text.removeprefix("-").isdigit():
        parser.error(f"--nproc-per-node: found {text}; expected at least 1")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = [name for name in (visible or "").split(",") if name.strip()]
    gpus = len(devices) if visible is not None else len(list(Path("/dev").glob("nvidia[0-9]*")))
    if text == "gpu" and not gpus:
        parser.error("--nproc-per-node gpu: no GPU is visible on this machine")
    if text in ("gpu", "auto") and gpus:
        return gpus
    if text not in ("cpu", "auto"):
        parser.error(f"--nproc-per-node: found {text!r}; expected a number, cpu, gpu or auto")
    return os.cpu_count() or 1


def preload(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Sequence[str] | None:
    """The modules that the warm process imports; None if workers are new interpreters."""
    if args.no_preload and args.preload:
        parser.error("--preload and --no-preload exclude each other")
    fresh = "--no-preload" if args.no_preload else "--no-python" if args.no_python and not args.run_path else ""
    if fresh and args.prepare:
        parser.error(f"--prepare and {fresh} exclude each other: prepared workers are forked")
    if fresh:
        return None
    return tuple(args.preload.split(",")) if args.preload else DEFAULT_PRELOAD
