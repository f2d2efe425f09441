"""``ftrun``: run a distributed PyTorch job and keep it running through faults. Parsing and printing only."""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import re
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import argcomplete
import attrs
import msgspec

from ftcore.cli import options, places
from ftcore.cli.local import LocalNodes
from ftcore.cli.node import NodeConfig, guarded, run_node
from ftcore.cli.policy_file import policy_in_force
from ftcore.errors import FtcoreError, UsageError
from ftcore.events.job import JobSpec
from ftcore.ids import Round
from ftcore.logs import check_job_name, default_store_url
from ftcore.policies.environment import VARIABLE
from ftcore.policies.feasible import passed_over
from ftcore.policies.notes import notes
from ftcore.ports import Launch
from ftcore.runtime.agent import launchable
from ftcore.runtime.agent.agent import AgentConfig, Outcome
from ftcore.runtime.agent.supervisor import Output
from ftcore.runtime.logging import PatientStream, configure
from ftcore.runtime.warm.serve import DEFAULT_PRELOAD
from ftcore.runtime.wire.client import token, whoami
from ftcore.runtime.wire.frames import Submission, submission
from ftcore.states.world import usable
from ftcore.timing import DEFAULT, Timing

ROLES = ("auto", "agent", "master")
FLUSH_S = 1.0
"""How long the end waits for a console that reads slowly."""

LOCALHOST = "127.0.0.1"
LOCAL_NODE = "node"
"""What the nodes of one machine are called, before their number, unless ``--node-id`` says otherwise."""

TIMING_ENV = "FTCORE_TIMING"
"""Time constants as a JSON object, for tests of ftcore itself; they become part of the job's spec."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ftrun``; returns the exit code (see the epilog of ``--help``)."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = options.build_parser()
    for hidden in ("--local-place", "--local-parent"):
        parser.add_argument(hidden, type=int, default=-1, help=argparse.SUPPRESS)
    argcomplete.autocomplete(parser)
    args = parser.parse_args(given)
    configure(args.log_level)
    outcome = guarded(lambda: _run(parser, args, given))
    if outcome.exit_code and args.local_parent < 0:
        released = "this node is released, and the job goes on without it: " if outcome.outcome == "released" else ""
        print(f"ftrun: {released}{outcome.reason}", file=sys.stderr)
        if outcome.outcome in ("failed", "stopped"):
            print(f"ftrun: the whole story: ftctl explain --job {args.job}", file=sys.stderr)
    elif outcome.outcome == "refused":
        print(f"ftrun: {outcome.reason}", file=sys.stderr)
    return outcome.exit_code


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace, given: list[str]) -> Outcome:
    args.job = _job_name(args)
    args.store = _store(args)
    if args.local_nodes is not None and args.local_place < 0:
        if args.local_nodes < 1:
            parser.error(f"--local-nodes: found {args.local_nodes}; expected at least 1")
        _tell(args)
        config = _config(parser, args)  # a wrong flag is told once, before any agent starts
        _tell_policy(config.agent.submission)
        _check_script(config.agent.submission.spec)
        argv = agent_argv(args, given)
        name = args.node_id or LOCAL_NODE
        nodes = LocalNodes(nodes=args.local_nodes, argv=argv, store=args.store, job=args.job, name=name)
        return asyncio.run(nodes.run())
    config = _config(parser, args)
    if args.role == "master":
        return _run_master(config)
    if args.local_parent < 0:
        _tell(args)
        _tell_policy(config.agent.submission)
        _check_script(config.agent.submission.spec)
    return asyncio.run(run_node(config))


def _check_script(spec: JobSpec) -> None:
    """Tell at once what the user has to mend; a node on which it cannot be run all the same tells it in the log."""
    launchable.check(
        Launch(
            round=Round(0),
            argv=spec.argv,
            module=spec.module,
            no_python=spec.no_python,
            cwd=spec.cwd,
            envs=(os.environ,),
            log_dirs=(),
        )
    )


def _tell(args: argparse.Namespace) -> None:
    for name, why in options.REPLACED.items():
        if getattr(args, name) is not None:
            print(f"ftrun: --{name.replace('_', '-')} has nothing to set here: {why}", file=sys.stderr)
    print(
        f"ftrun: job {args.job}, log in {args.store}; look at it with: ftctl status --job {args.job}", file=sys.stderr
    )


def _tell_policy(asked: Submission) -> None:
    """What is worth to be told before anything starts; whoever chose a preset hears what of it cannot be done."""
    for note in notes(asked.policy):
        print(f"ftrun: {asked.policy.source}: {note}", file=sys.stderr)
    over = passed_over(asked.policy) if asked.policy.text else []
    if over:
        print(
            f"ftrun: passed over for want of abilities: {', '.join(over)}; see: ftctl policy check "
            f"{asked.policy.source.partition(' with ')[0]}",
            file=sys.stderr,
        )


def agent_argv(args: argparse.Namespace, given: Sequence[str]) -> list[str]:
    """An agent's command line: the user's, with job and store set behind the user's flags, before the script."""
    script = len(given) - 1 - len(args.args)
    flags = given[:script] if given[script - 1 : script] != ["--"] else given[: script - 1]
    return ["ftrun", *flags, "--job", args.job, "--store", args.store, *given[script:]]


def _job_name(args: argparse.Namespace) -> str:
    named: str | None = args.job or (args.rdzv_id if args.rdzv_id not in (None, "none") else None)
    if named is None:
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", Path(args.script).stem).strip("-.") or "job"
        named = f"{stem[:40]}-{time.strftime('%Y%m%d-%H%M%S')}-{random.randrange(16**4):04x}"
    check_job_name(named)
    return named


def _store(args: argparse.Namespace) -> str:
    named = args.store or (args.rdzv_endpoint if args.rdzv_endpoint and "://" in args.rdzv_endpoint else None)
    url = str(named or os.environ.get("FTCORE_STORE") or default_store_url())
    if url.startswith(("file:", "memory:")):
        why = "a read-only archive" if url.startswith("file:") else "the memory of a single process"
        raise UsageError(f"--store: {url} is {why}; a job needs sqlite: or etcd:")
    return url


def _config(parser: argparse.ArgumentParser, args: argparse.Namespace) -> NodeConfig:
    if args.standalone and args.nnodes not in (None, "1", "1:1"):
        parser.error(f"--standalone is one node, but --nnodes says {args.nnodes}; leave one of them out")
    nodes_min, nodes_max = options.node_range(parser, args.nnodes or str(args.local_nodes or 1))
    if args.local_nodes is not None and args.local_nodes < nodes_min:
        parser.error(f"--nnodes wants at least {nodes_min} nodes, --local-nodes plays only {args.local_nodes}")
    slots = _slots(parser, args.nproc_per_node)
    local = args.local_place >= 0
    alone = nodes_max == 1 and not local
    on_this_machine = args.store.startswith("sqlite:")
    address = args.local_addr or (LOCALHOST if alone or local or on_this_machine else _own_address())
    node = args.node_id or (LOCAL_NODE if local else socket.gethostname().partition(".")[0])
    if local:
        node = f"{node}{args.local_place}"
    agent = AgentConfig(
        job=args.job,
        node=node,
        slots=slots,
        address=address,
        submission=_submission(args, nodes_min, nodes_max, slots),
        log_dir=places.private_dir(
            (Path(args.log_dir).absolute() if args.log_dir else places.state_home() / "logs") / args.job
        ),
        state_dir=places.private_dir(places.state_home() / "agents" / args.job),
        env=_worker_base_env(slots),
        ordinal=args.local_place if local else args.node_rank,
        token=token(),
        lead_delay_s=_lead_delay_s(args, alone=alone),
    )
    return NodeConfig(
        agent=agent,
        store=args.store,
        output=Output(
            redirects=options.stream_map(parser, "--redirects", args.redirects),
            tee=options.stream_map(parser, "--tee", args.tee),
            local_ranks_filter=options.ranks(parser, args.local_ranks_filter),
        ),
        preload=_preload(parser, args),
        leads=args.role != "agent",
        alone=alone,
        master_listen="" if on_this_machine else "[::]:0",
        master_log=agent.state_dir / f"{node}.master.log",
        log_level=args.log_level,
        parent=args.local_parent if args.local_parent > 0 else 0,
    )


def _submission(args: argparse.Namespace, nodes_min: int, nodes_max: int, slots: int) -> Submission:
    if args.node_unit < 1 or not usable(nodes_max, nodes_min=nodes_min, nodes_max=nodes_max, node_unit=args.node_unit):
        raise UsageError(
            f"--node-unit: found {args.node_unit}; expected a number of which some multiple lies within "
            f"--nnodes {nodes_min}:{nodes_max}"
        )
    spec = JobSpec(
        argv=(args.script, *args.args),
        module=args.module,
        no_python=args.no_python,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        node_unit=args.node_unit,
        role="default" if args.role in ROLES else args.role,
        cwd=str(Path.cwd()),
        timing=_timing(),
    )
    policy = policy_in_force(
        args.policy,
        max_restarts=args.max_restarts,
        switches=os.environ.get(VARIABLE, ""),
        ranks=nodes_max * slots,
    )
    return submission(
        spec,
        policy,
        command=sys.argv,
        versions={"python": platform.python_version()},
        user=whoami(),
    )


def _timing() -> Timing:
    """The job's time constants: the defaults, or for tests of ftcore itself, what the environment says."""
    text = os.environ.get(TIMING_ENV)
    if not text:
        return DEFAULT
    try:
        timing = msgspec.json.decode(text, type=dict[str, float])
        changed = attrs.evolve(DEFAULT, **timing)
        changed.check()
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise UsageError(
            f"{TIMING_ENV}: found {text!r}; expected a JSON object of time constants in seconds: {error}"
        ) from error
    return changed


def _slots(parser: argparse.ArgumentParser, text: str) -> int:
    """``--nproc-per-node``: a number, or what there is; torch is not asked, it would cost a second."""
    if text.isdigit() and int(text) > 0:
        return int(text)
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


def _worker_base_env(slots: int) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    if slots > 1 and "OMP_NUM_THREADS" not in env:
        env["OMP_NUM_THREADS"] = "1"  # torchrun's rule: workers of one node must not fight for its cores
    return env


def _preload(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Sequence[str] | None:
    if args.no_preload:
        if args.preload:
            parser.error("--preload and --no-preload exclude each other")
        return None
    if args.no_python:
        return None
    return tuple(args.preload.split(",")) if args.preload else DEFAULT_PRELOAD


def _lead_delay_s(args: argparse.Namespace, *, alone: bool) -> float | None:
    """How long nobody must lead before this node puts up a candidate: the first at once, the rest in their order."""
    if args.role == "agent":
        return None
    place = 0 if alone else args.local_place if args.local_place >= 0 else args.node_rank
    return 1.0 * place if place is not None else random.uniform(0.0, 3.0)


def _own_address() -> str:
    """The address of this host by which others most likely reach it."""
    name = socket.getfqdn()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return LOCALHOST
    own = next((str(info[4][0]) for info in found if not str(info[4][0]).startswith(("127.", "::1"))), "")
    return own or name


def _run_master(config: NodeConfig) -> Outcome:
    from ftcore.cli import master

    argv = ["--store", config.store, "--job", config.agent.job, "--advertise", config.agent.address]
    listen = config.master_listen or places.master_socket(config.agent.job)
    code = master.main([*argv, "--listen", listen, "--log-level", config.log_level])
    return Outcome(exit_code=code, outcome="left", reason="the master ended")


def run() -> None:
    """Entry point of the console script."""
    code = 1
    sys.stderr = patient = PatientStream(sys.stderr)  # a terminal that is closed or not read must not stop the job
    try:
        code = main()
    except FtcoreError as error:
        print(f"ftrun: {error}", file=sys.stderr)
        code = error.exit_code
    except SystemExit as end:  # of the argument parser, which has said why
        code = end.code if isinstance(end.code, int) else 2
    except KeyboardInterrupt:
        print("ftrun: interrupted before the job began", file=sys.stderr)
        code = 130
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        patient.drain(FLUSH_S)
        os._exit(code)  # gRPC's threads have nothing to say any more, and may take seconds to say it


if __name__ == "__main__":
    run()
