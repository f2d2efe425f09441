"""``ftctl slurm``: writes batch scripts, and is what they run."""

import argparse
import contextlib
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Final

from ftcore.errors import UsageError
from ftcore_slurm.deputy import Deputy
from ftcore_slurm.ending import JobEnding
from ftcore_slurm.environment import job_name, job_number, own
from ftcore_slurm.run import DIR_ENV, BatchRun, RunOptions, flags_of_the_allocation
from ftcore_slurm.script import BatchScript

LEAD_S: Final = 180
REQUEUES: Final = 20

_SCRIPT = """\
examples:
  ftctl slurm script --nodes 4 --spares 1 -- train.py --lr 3e-4 | sbatch
  ftctl slurm script --nodes 16 --spares 2 --sbatch=--time=24:00:00 --sbatch=--gpus-per-node=8 --sbatch=--account=llm \\
      --output train.sbatch -- --policy policy.yaml --checkpoints /scratch/llm -m my.trainer"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``script`` and ``run``."""
    parser.description = "Run jobs on Slurm."
    commands = parser.add_subparsers(dest="slurm", metavar="COMMAND", required=True)
    raw = argparse.RawDescriptionHelpFormatter
    script = commands.add_parser(
        "script",
        help="Write a batch script for sbatch.",
        description="Write a batch script for sbatch: flags, script and arguments of ftrun follow after --.",
        epilog=_SCRIPT,
        formatter_class=raw,
    )
    script.add_argument(
        "--spares",
        type=_natural,
        default=0,
        metavar="N",
        help="further nodes, ready for lost ones, as far as they are free",
    )
    script.add_argument(
        "--sbatch", action="append", default=[], metavar="FLAG", help="a flag for sbatch, as --sbatch=--time=24:00:00"
    )
    script.add_argument("--output", metavar="FILE", help="write it to this file (default: standard output)")
    run = commands.add_parser(
        "run",
        help="In a batch script: run the job on the nodes of the allocation.",
        description="In a batch script: start the job's log and an agent on each node; requeue the job if necessary.",
        epilog="examples:\n  exec ftctl slurm run --nodes=4 -- train.py --lr 3e-4",
        formatter_class=raw,
    )
    deputy = commands.add_parser("deputy")
    deputy.add_argument("--owns-log", action="store_true")
    for each in (script, run):
        each.add_argument("--nodes", type=_positive, required=True, metavar="N", help="nodes that train")
        each.add_argument("--etcd", metavar="PROGRAM", help="etcd's program, used without FTCORE_STORE (default: etcd)")
        each.add_argument(
            "--no-drain", action="store_true", help="do not ask Slurm to drain quarantined and lost nodes"
        )
    for each in (script, run, deputy):
        each.add_argument(
            "--dir",
            metavar="DIR",
            help=f"directory that all nodes share (default: ${DIR_ENV}, else ~/.local/state/ftcore/slurm)",
        )
        each.add_argument(
            "--lead",
            type=_positive,
            default=LEAD_S,
            metavar="SECONDS",
            help=f"time before the time limit to save and stop (default: {LEAD_S})",
        )
        each.add_argument(
            "--requeues",
            type=_natural,
            default=REQUEUES,
            metavar="N",
            help=f"how often a failed job is requeued (default: {REQUEUES}; 0: never)",
        )
    for each in (script, run):
        what = "flags, script and arguments of ftrun"
        each.add_argument("ftrun", nargs=argparse.REMAINDER, metavar="-- ARGS", help=what)


async def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit code.

    Raises:
        UsageError: arguments are missing, or this is not the place for them.
    """
    if args.slurm == "deputy":
        return await _deputy(args)
    command = args.ftrun[1:] if args.ftrun[:1] == ["--"] else args.ftrun
    if not command:
        raise UsageError(f"ftctl slurm {args.slurm}: found no script; expected one after --, as: -- train.py")
    if wrong := flags_of_the_allocation(command):
        raise UsageError(
            f"{wrong[0]}: the allocation decides it; name the job with FTCORE_JOB, its log with FTCORE_STORE"
        )
    if args.slurm == "script":
        return _script(args, command)
    etcd = args.etcd or "etcd"
    if "FTCORE_STORE" not in own(os.environ) and shutil.which(etcd) is None:
        raise UsageError(
            f"--etcd: there is no program {etcd}, and the nodes of a job share a log: install etcd on the nodes, "
            "or name a cluster with FTCORE_STORE=etcd://HOST:PORT"
        )
    options = RunOptions(
        nodes=args.nodes,
        lead_s=args.lead,
        requeues=args.requeues,
        drains=not args.no_drain,
        etcd=shutil.which(etcd) or etcd,
        directory=_directory(args),
        command=command,
    )
    return await BatchRun(options, os.environ).run()


async def _deputy(args: argparse.Namespace) -> int:
    env = os.environ
    ending = JobEnding(
        number=job_number(env),
        restarts=int(env.get("SLURM_RESTART_COUNT", "0")),
        requeues=args.requeues,
        directory=_directory(args) / job_name(env),
    )
    with (ending.directory / "deputy.log").open("a", buffering=1) as log, contextlib.redirect_stderr(log):
        return await Deputy(ending, int(env["SLURM_NODEID"]), args.lead, owns_log=args.owns_log).run()


def _directory(args: argparse.Namespace) -> Path:
    named = args.dir or os.environ.get(DIR_ENV)
    return (Path(named) if named else Path.home() / ".local/state/ftcore/slurm").absolute()


def _script(args: argparse.Namespace, command: list[str]) -> int:
    wrong = [flag for flag in args.sbatch if not flag.startswith("-")]
    if wrong:
        raise UsageError(f"--sbatch: found {wrong[0]!r}; expected a flag of sbatch, as --sbatch=--time=24:00:00")
    given = {"dir": args.dir, "etcd": args.etcd, "requeues": args.requeues if args.requeues != REQUEUES else None}
    text = BatchScript(
        nodes=args.nodes,
        spares=args.spares,
        lead_s=args.lead,
        directives=args.sbatch,
        run_flags=[f"--{name}={value}" for name, value in given.items() if value is not None]
        + (["--no-drain"] if args.no_drain else []),
        command=command,
    ).text()
    if args.output is None:
        sys.stdout.write(text)
        return 0
    path = Path(args.output)
    try:
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    except OSError as error:
        raise UsageError(f"--output: {path}: {error.strerror}") from error
    print(f"ftctl: wrote {path}; submit it with: sbatch {path}", file=sys.stderr)
    return 0


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a whole number")
    return int(text)


def _positive(text: str) -> int:
    if _natural(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected at least 1")
    return int(text)
