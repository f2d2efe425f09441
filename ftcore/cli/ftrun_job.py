"""``ftrun`` after its flags were read (``ftrun.py``): builds a node's configuration from them and runs it."""

import argparse
import asyncio
import os
import platform
import random
import re
import resource
import shlex
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import attrs
import msgspec

from ftcore.launch import lean  # noqa: F401  # isort: skip -- first of all
from ftcore.cli import options
from ftcore.cli.batch_flags import with_batch
from ftcore.cli.torchrun_flags import Treatment, having
from ftcore.cli.watching_flags import observed, set_log_format
from ftcore.errors import INTERRUPTED, FtcoreError, UsageError
from ftcore.events.job import JobSpec
from ftcore.ids import Round
from ftcore.launch import paths
from ftcore.launch.address import LOCALHOST, address_in, on_this_machine, reachable
from ftcore.launch.candidacy import Candidacy, archive_dir
from ftcore.launch.environ import worker_base_env
from ftcore.launch.extent import extent
from ftcore.launch.hints import completed, elsewhere
from ftcore.launch.job import base_timing, narrates, possible_abilities, submitted
from ftcore.launch.local import LocalNodes
from ftcore.launch.node import NodeConfig, guarded, run_node
from ftcore.launch.process import end_process, patient_stderr
from ftcore.launch.security import security_in_force
from ftcore.logs import check_job_name, default_store_url
from ftcore.logs.stores import check_store_url
from ftcore.platforms import LOCAL, check_url
from ftcore.platforms.machines import Place
from ftcore.platforms.options import parse as parse_local
from ftcore.policies.file.feasible import skipped_policies
from ftcore.policies.file.notes import notes
from ftcore.ports import Launch
from ftcore.runtime.agent.config import LEAVE_MARGIN_S, AgentConfig, Outcome
from ftcore.runtime.agent.workers import launchable, processes
from ftcore.runtime.agent.workers.output import LINE_PREFIX, STDERR, STDOUT, Output
from ftcore.runtime.agent.workers.warm_start import Started
from ftcore.runtime.log_context import describe
from ftcore.runtime.logging import configure
from ftcore.runtime.observers import problems
from ftcore.runtime.wire.frames import Submission
from ftcore.runtime.wire.security import Security
from ftcore.states.world import impossible, next_size, usable
from ftcore.timing import Timing
from ftcore.wording import plural, printable, reason_suffix, without_repeats

FILES, FILES_PER_WORKER = 40, 10
"""Files that an agent opens, and files for each worker: measured with low limits, plus a margin."""

JOIN_WINDOW_MAX_S = 86400.0

LOCAL_NODE = "node"
"""Default prefix of the names of ``--local-nodes``; ``--node-id`` sets another one."""

OF_ONE_NODE = ("--node-id", "--node-rank", "--node-labels", "--local-addr")
"""Flags whose values differ between the nodes of a job; all take one value."""

PLATFORM_ENV = "FTCORE_PLATFORM"
"""Default of ``--platform``."""

LINE_PREFIX_ENV = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""torchrun's template of the prefix of teed lines."""


_ENDINGS = {
    "failed": "the job has failed: ",
    "stopped": "the job has stopped: ",
    "released": "this node is released, and the job goes on without it: ",
}
"""Beginning of the last message, by outcome."""


def main(parser: argparse.ArgumentParser, args: argparse.Namespace, given: list[str], warm: Started | None) -> int:
    """Run ``ftrun``; returns the exit code (see the epilog of ``--help``).

    Args:
        parser: of the flags.
        args: the flags.
        given: the command line without the program's name.
        warm: the warm process, if it was already started.
    """
    set_log_format(parser, args.log_format)
    configure(args.log_level)
    outcome = guarded(lambda: _run(parser, args, given, warm))
    reason = completed(outcome.reason, elsewhere(args.store), args.job) if args.job else outcome.reason
    if outcome.exit_code and args.local_parent < 0:
        print(f"ftrun: {_ENDINGS.get(outcome.outcome, '')}{printable(without_repeats(reason))}", file=sys.stderr)
        if outcome.outcome in ("failed", "stopped"):
            output = f"; output: {_ftctl(args)} logs --job {args.job}" if outcome.outcome == "failed" else ""
            print(f"ftrun: for details: {_ftctl(args)} explain --job {args.job}{output}", file=sys.stderr)
    elif outcome.outcome == "succeeded" and args.local_parent < 0:
        print(f"ftrun: the job succeeded{reason_suffix(extent(args.store, args.job))}", file=sys.stderr)
    elif outcome.outcome == "refused":
        print(f"ftrun: {printable(reason)}", file=sys.stderr)
    return outcome.exit_code


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace, given: list[str], warm: Started | None) -> Outcome:
    args.job = _job_name(args)
    args.store = _store(args)
    args.platform = _platform(parser, args)
    _check_observers(args)
    describe(job=args.job)
    if args.local_nodes is not None and args.local_place < 0:
        if args.local_nodes < 1:
            parser.error(f"--local-nodes: found {args.local_nodes}; expected at least 1")
        config = _config(parser, args)  # reports a wrong flag once, before any agent starts
        _print_job(args)
        _print_policy_notes(config.agent.submission, args.platform)
        name, given_options = args.node_id or LOCAL_NODE, parse_local(args.platform)
        node_names = [f"{name}{number}" for number in range(args.local_nodes)]
        named = [("preempt", node) for node, _ in given_options.preempt]
        named += [("maintain", node) for node, *_ in given_options.maintain]
        for option, node in named:
            if node not in node_names:
                parser.error(f"--platform: {option}={node}@...: no such node; expected one of {', '.join(node_names)}")
        socket_path = paths.platform_socket(args.store)
        agent_args = agent_argv(args, given, f"local://{socket_path}")
        nodes = LocalNodes(
            nodes=args.local_nodes,
            command=lambda place, launch: local_argv(place, launch, agent_args),
            store=args.store,
            job=args.job,
            security=config.agent.security,
            socket=socket_path,
            options=given_options,
            name=name,
            signals=config.signals,
        )
        return asyncio.run(nodes.run())
    config = attrs.evolve(_config(parser, args), warm=warm)
    describe(job=args.job, node=config.agent.node)
    if args.platform and args.local_place < 0:
        config = attrs.evolve(config, candidacy=attrs.evolve(config.candidacy, node_argv=node_argv(args, given)))
    if args.leadership == "only":
        return _run_master(config.candidacy)
    if args.local_parent < 0:
        _print_job(args)
        _check_file_limit(config.agent.slots)
        _print_policy_notes(config.agent.submission, args.platform)
        _print_missing_nodes(args, config.agent.submission.spec)
    return asyncio.run(run_node(config))


def _check_file_limit(slots: int) -> None:
    """Warn of a low limit of open files: workers, stores and masters would fail with unrelated errors."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES + FILES_PER_WORKER * slots
    if allowed < wanted:
        print(
            f"ftrun: the limit of open files is {allowed} (ulimit -n); {plural(slots, 'worker')} may need {wanted}: "
            "raise it, or starts may fail",
            file=sys.stderr,
        )


def _check_observers(args: argparse.Namespace) -> None:
    """Refuse wrong URLs of observers, and warn of what would keep them from working on this host."""
    if args.local_parent < 0:
        for problem in problems(observed(args.observe)):
            print(f"ftrun: {problem}", file=sys.stderr)


def _check_script(spec: JobSpec) -> None:
    """Refuse a script that cannot be run before the job starts.

    Raises:
        UsageError: it cannot be run on this node.
    """
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


def _print_job(args: argparse.Namespace) -> None:
    """Print the job's name and store, and a note for each flag of torchrun that is ignored."""
    for name, why in having(Treatment.UNUSED).items():
        if getattr(args, name) is not None:
            print(f"ftrun: --{name.replace('_', '-')} is ignored: {why}", file=sys.stderr)
    if args.rdzv_endpoint and "://" not in args.rdzv_endpoint:
        print(
            f"ftrun: --rdzv-endpoint {args.rdzv_endpoint} is ignored: nodes meet in the log store; on several machines "
            "use --store etcd://HOST:PORT",
            file=sys.stderr,
        )
    print(
        f"ftrun: job {args.job}, log in {args.store}; show its status with: {_ftctl(args)} status --job {args.job}",
        file=sys.stderr,
    )


def _print_missing_nodes(args: argparse.Namespace, spec: JobSpec) -> None:
    """Print what the other nodes must be started with: nodes find each other by the job's name and store."""
    if spec.nodes_min < 2 or args.local_nodes is not None:
        return
    where = "; a SQLite store is only for nodes on this machine: for several machines use --store etcd://HOST:PORT"
    print(
        f"ftrun: waiting for {plural(spec.nodes_min - 1, 'more node')}: start with --job {args.job} and the same "
        "--store" + (where if args.store.startswith("sqlite:") else ""),
        file=sys.stderr,
    )


def _checkpoints(place: str | None) -> str:
    """A directory as an absolute path, or a URL; empty: none was given."""
    return "" if not place else place if "://" in place else str(Path(place).absolute())


def _leave_within_s(parser: argparse.ArgumentParser, text: str | None) -> float | None:
    found = options.seconds(parser, "--leave-within", text)
    if found is not None and found <= LEAVE_MARGIN_S:
        parser.error(f"--leave-within: found {text}; expected more than {LEAVE_MARGIN_S:g} s, which leaving may take")
    return found


def _ftctl(args: argparse.Namespace) -> str:
    """The ``ftctl`` command that finds this job's store."""
    store = elsewhere(args.store)
    return f"ftctl --store {shlex.quote(store)}" if store else "ftctl"


def _print_policy_notes(submission: Submission, platform: str) -> None:
    """Print notes about the policy file, and its policies that are skipped because abilities are missing."""
    for note in notes(submission.policy):
        print(f"ftrun: {submission.policy.source}: {note}", file=sys.stderr)
    abilities = possible_abilities(submission.spec, platform)
    skipped = skipped_policies(submission.policy, abilities) if submission.policy.text else []
    if skipped:
        print(
            f"ftrun: skipped, because the job lacks their abilities: {', '.join(skipped)}; see: ftctl policy check "
            f"{submission.policy.source.partition(' with ')[0]}",
            file=sys.stderr,
        )


def agent_argv(args: argparse.Namespace, given: Sequence[str], platform: str) -> list[str]:
    """An agent's command line: the user's, with job, store and platform added between the flags and the script."""
    script = len(given) - 1 - len(args.args)
    flags = given[:script] if given[script - 1 : script] != ["--"] else given[: script - 1]
    return [*flags, "--job", args.job, "--store", args.store, "--platform", platform, *given[script:]]


def node_argv(args: argparse.Namespace, given: Sequence[str]) -> tuple[str, ...]:
    """The command line of another node of the job: the user's, without the flags of this node alone."""
    argv = agent_argv(args, given, args.platform)
    flags, kept = argv[: len(argv) - 1 - len(args.args)], ["ftrun"]
    arguments = iter(flags)
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if name.replace("_", "-") not in OF_ONE_NODE:
            kept.append(argument)
        elif not equals:
            next(arguments)  # the value of the flag
    return (*kept, *argv[len(flags) :])


def local_argv(place: Place, launch: str, given: Sequence[str]) -> list[str]:
    """The command line of an agent of ``--local-nodes``; ``given`` comes from ``agent_argv``."""
    hidden = {"place": place.number, "life": place.life, "parent": os.getpid(), "launch": launch}
    flags = [text for name, value in hidden.items() for text in (f"--local-{name}", str(value))]
    return [sys.executable, "-m", "ftcore.cli.ftrun", *flags, *given]


def _job_name(args: argparse.Namespace) -> str:
    named: str | None = args.job or (args.rdzv_id if args.rdzv_id not in (None, "none") else None)
    if named is None:
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", Path(args.script).stem).strip("-.") or "job"
        named = f"{stem[:40]}-{time.strftime('%Y%m%d-%H%M%S')}-{random.randrange(16**4):04x}"
    check_job_name(named)
    return named


def _platform(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """URL of the platform that launches nodes; empty if there is none."""
    url = str(args.platform or os.environ.get(PLATFORM_ENV) or ("local:" if args.local_nodes is not None else ""))
    if not url:
        return ""
    scheme = check_url(url)
    if (scheme == LOCAL) != (args.local_nodes is not None):
        use = "only for --local-nodes" if scheme == LOCAL else "not for --local-nodes"
        parser.error(f"--platform: {url} is {use}")
    return url


def _store(args: argparse.Namespace) -> str:
    named = args.store or (args.rdzv_endpoint if args.rdzv_endpoint and "://" in args.rdzv_endpoint else None)
    url = str(named or os.environ.get("FTCORE_STORE") or default_store_url())
    check_store_url(url)
    if url.startswith(("file:", "memory:")):
        why = "a read-only archive" if url.startswith("file:") else "the memory of one process"
        raise UsageError(f"--store: {url} is {why}; expected sqlite: or etcd:")
    return url


def _config(parser: argparse.ArgumentParser, args: argparse.Namespace) -> NodeConfig:
    """The configuration of this node. The token file is made last, so a refusal leaves no file behind."""
    spec = _spec(parser, args)
    slots = options.slots(parser, args.nproc_per_node)
    local = args.local_place >= 0
    alone = spec.nodes_max == 1 and not local
    address = reachable(args.local_addr) or address_in(args.store, alone=alone or local)
    agent = AgentConfig(
        job=args.job,
        node=_node_name(args),
        slots=slots,
        address=address,
        submission=submitted(
            spec,
            args.policy,
            slots=slots,
            command=sys.argv,
            versions={"python": platform.python_version()},
            platform=args.platform,
            max_restarts=args.max_restarts,
            grace_s=args.shutdown_timeout,
            launch=args.local_launch,
        ),
        log_dir=(Path(args.log_dir).absolute() if args.log_dir else paths.state_home() / "logs") / args.job,
        state_dir=paths.state_home() / "agents" / args.job,
        env=worker_base_env(slots, args.signals_to_handle),
        ordinal=args.local_place if local else args.node_rank,
        labels=options.node_labels(parser, args.node_labels),
        lead_delay_s=_lead_delay_s(args, alone=alone),
        leave_within_s=_leave_within_s(parser, args.leave_within),
        keeper=paths.keeper_socket(args.store, args.job, _node_name(args)),
        virtual_local_rank=_virtual_local_rank(parser, args, slots),
    )
    config = NodeConfig(
        agent=agent,
        candidacy=_candidacy(args, address, spec),
        output=_output(parser, args),
        preload=options.preload(parser, args),
        leads=args.leadership != "never",
        alone=alone,
        narrates=alone or (not local and narrates(args.node_rank, spec.nodes_max)),
        parent=args.local_parent if args.local_parent > 0 else 0,
        store_port=args.master_port,
        signals=options.signals(parser, args.signals_to_handle),
        prepare=args.prepare or "",
    )
    if args.local_parent < 0 and args.leadership != "only":
        _check_script(spec)
    return attrs.evolve(config, agent=attrs.evolve(agent, security=_security(args, address)))


def _candidacy(args: argparse.Namespace, address: str, spec: JobSpec) -> Candidacy:
    return Candidacy(
        store=args.store,
        job=args.job,
        keep_events=args.keep_events,
        snapshot_events=args.snapshot_events,
        archive=archive_dir(args.archive),
        advertise=address,
        platform=args.platform,
        nodes=spec.nodes_max,
        log_level=args.log_level,
        observe=observed(args.observe),
        node=_node_name(args),
    )


def _node_name(args: argparse.Namespace) -> str:
    if args.local_place < 0:
        return args.node_id or socket.gethostname().partition(".")[0]
    return f"{args.node_id or LOCAL_NODE}{args.local_place}" + (f".{args.local_life}" if args.local_life > 0 else "")


def _output(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Output:
    return Output(
        redirects=options.stream_map(parser, "--redirects", args.redirects),
        tee=options.stream_map(parser, "--tee", args.tee),
        local_ranks_filter=options.ranks(parser, args.local_ranks_filter),
        line_prefix=os.environ.get(LINE_PREFIX_ENV) or LINE_PREFIX,
        copied={STDOUT: args.duplicate_stdout_filters, STDERR: args.duplicate_stderr_filters},
    )


def _virtual_local_rank(parser: argparse.ArgumentParser, args: argparse.Namespace, slots: int) -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if args.virtual_local_rank and visible is not None and len(visible.split(",")) < slots:
        parser.error(
            f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={visible} names {plural(len(visible.split(',')), 'device')}, "
            f"expected one for each of {slots} workers"
        )
    return bool(args.virtual_local_rank)


def _security(args: argparse.Namespace, address: str) -> Security:
    leads = args.leadership != "never" and not on_this_machine(args.store)
    here = LOCALHOST if args.local_nodes is not None and not args.local_addr else address
    return security_in_force(args.store, args.job, here if leads else "", "ftrun" if args.local_parent < 0 else "")


def _spec(parser: argparse.ArgumentParser, args: argparse.Namespace) -> JobSpec:
    """The job's spec, refused if no world can satisfy it."""
    if args.standalone and args.nnodes not in (None, "1", "1:1"):
        parser.error(f"--standalone means one node, but --nnodes is {args.nnodes}; remove one of them")
    nodes_min, nodes_max = options.node_range(parser, args.nnodes or str(args.local_nodes or 1))
    if args.local_nodes is not None and args.local_nodes < nodes_min:
        least = plural(nodes_min, "node")
        parser.error(f"--nnodes requires at least {least}, but --local-nodes is {args.local_nodes}")
    if args.module and args.no_python and not args.run_path:
        parser.error("--module and --no-python exclude each other, because python runs a module; remove one of them")
    spec = JobSpec(
        argv=(args.script, *args.args),
        module=args.module,
        no_python=args.no_python and not args.run_path,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        node_unit=args.node_unit,
        sizes=options.node_sizes(parser, args.node_sizes),
        order_by=options.label_name(parser, args.order_by),
        role=args.role,
        cwd=str(Path.cwd()),
        timing=_timing(parser, args.join_window, args.shutdown_timeout).for_nodes(nodes_max),
        checkpoints=_checkpoints(args.checkpoints),
    )
    spec = with_batch(parser, args, spec)
    if why := impossible(spec):
        raise UsageError(why)
    if args.local_nodes is not None and not usable(args.local_nodes, spec):
        smallest = next_size(spec, 0)
        parser.error(
            f"--local-nodes: found {args.local_nodes}; expected a permitted number of nodes, at least {smallest}"
        )
    return spec


def _timing(
    parser: argparse.ArgumentParser, join_window_s: float | None = None, shutdown_timeout_s: int | None = None
) -> Timing:
    """The job's time constants: the defaults, changed by flags and (in tests of ftcore) by the environment."""
    timing = base_timing()
    if shutdown_timeout_s is not None:
        back_s = max(timing.return_window_s, 2.0 * shutdown_timeout_s)
        timing = msgspec.structs.replace(timing, stop_grace_s=float(shutdown_timeout_s), return_window_s=back_s)
    if join_window_s is None:
        return timing
    if not 0 <= join_window_s <= JOIN_WINDOW_MAX_S:
        parser.error(f"--join-window: found {join_window_s:g}; expected seconds, 0 to {JOIN_WINDOW_MAX_S:.0f}")
    return msgspec.structs.replace(timing, join_window_s=join_window_s)


def _lead_delay_s(args: argparse.Namespace, *, alone: bool) -> float | None:
    """Seconds without a leader before this node starts a candidate: 0 for the first node, more for later ones."""
    if args.leadership == "never":
        return None
    place = 0 if alone else args.local_place if args.local_place >= 0 else args.node_rank
    return 1.0 * place if place is not None else random.uniform(0.0, 3.0)


def _run_master(candidacy: Candidacy) -> Outcome:
    from ftcore.launch import master

    return Outcome(exit_code=master.run(candidacy), outcome="left", reason="the master ended")


def run(parser: argparse.ArgumentParser, args: argparse.Namespace, given: list[str], warm: Started | None) -> NoReturn:
    """Run ``ftrun`` as ``main`` does and end the process."""
    code = 1
    with patient_stderr():
        try:
            code = main(parser, args, given, warm)
        except FtcoreError as error:
            print(f"ftrun: {error}", file=sys.stderr)
            code = error.exit_code
        except SystemExit as end:  # from the argument parser, which has printed the error
            code = end.code if isinstance(end.code, int) else 2
        except KeyboardInterrupt:
            print("ftrun: interrupted before the job started", file=sys.stderr)
            code = INTERRUPTED
        except Exception:
            traceback.print_exc()
        if warm is not None:
            processes.end_child(warm.pid)  # the job did not start, so no supervisor owns it
    end_process(code)
