"""``ftrun`` behind its flags (``ftrun.py``): what the user asked for becomes a node's configuration, which is run."""

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

from ftcore.launch import lean  # noqa: F401  # isort: skip -- first of all
from ftcore.cli import options
from ftcore.cli.torchrun_flags import Treatment, having
from ftcore.errors import INTERRUPTED, FtcoreError, UsageError
from ftcore.events.job import JobSpec
from ftcore.ids import Round
from ftcore.launch import paths
from ftcore.launch.address import LOCALHOST, address_in, on_this_machine, reachable
from ftcore.launch.candidacy import Candidacy, archive_dir
from ftcore.launch.environ import worker_base_env
from ftcore.launch.hints import completed, elsewhere
from ftcore.launch.job import base_timing, submitted, tells_here
from ftcore.launch.local import LocalNodes
from ftcore.launch.node import NodeConfig, guarded, run_node
from ftcore.launch.process import end_process, patient_stderr
from ftcore.launch.security import security_in_force
from ftcore.logs import check_job_name, default_store_url
from ftcore.logs.stores import check_store_url
from ftcore.platforms import LOCAL, abilities_of, check_url
from ftcore.platforms.machines import Place
from ftcore.platforms.options import parse as parse_local
from ftcore.policies.feasible import passed_over
from ftcore.policies.notes import notes
from ftcore.ports import Launch
from ftcore.runtime.agent import launchable, processes
from ftcore.runtime.agent.config import GOODBYE_S, AgentConfig, Outcome
from ftcore.runtime.agent.supervisor import LINE_PREFIX, STDERR, STDOUT, Output
from ftcore.runtime.agent.warm_start import Started
from ftcore.runtime.logging import configure
from ftcore.runtime.wire.frames import Submission
from ftcore.runtime.wire.security import Security
from ftcore.states.world import impossible, next_size, usable
from ftcore.timing import Timing
from ftcore.wording import plural

FILES, FILES_PER_WORKER = 40, 10
"""Files that an agent holds open, with room: found by trying how few it runs with."""

JOIN_WINDOW_MAX_S = 86400.0

LOCAL_NODE = "node"
"""What the nodes of one machine are called, before their number, unless ``--node-id`` says otherwise."""

PLATFORM_ENV = "FTCORE_PLATFORM"
"""URL of what launches nodes, where ``--platform`` is not given."""

LINE_PREFIX_ENV = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""torchrun's template of the prefix of lines that are teed."""


def main(parser: argparse.ArgumentParser, args: argparse.Namespace, given: list[str], warm: Started | None) -> int:
    """Run ``ftrun``; returns the exit code (see the epilog of ``--help``).

    Args:
        parser: of the flags.
        args: the flags.
        given: the command line behind the program's name.
        warm: the warm process, if it was started already.
    """
    configure(args.log_level)
    outcome = guarded(lambda: _run(parser, args, given, warm))
    reason = completed(outcome.reason, elsewhere(args.store), args.job) if args.job else outcome.reason
    if outcome.exit_code and args.local_parent < 0:
        released = "this node is released, and the job goes on without it: " if outcome.outcome == "released" else ""
        print(f"ftrun: {released}{reason}", file=sys.stderr)
        if outcome.outcome in ("failed", "stopped"):
            print(f"ftrun: the whole story: {_ftctl(args)} explain --job {args.job}", file=sys.stderr)
    elif outcome.outcome == "refused":
        print(f"ftrun: {reason}", file=sys.stderr)
    return outcome.exit_code


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace, given: list[str], warm: Started | None) -> Outcome:
    args.job = _job_name(args)
    args.store = _store(args)
    args.platform = _platform(parser, args)
    if args.local_nodes is not None and args.local_place < 0:
        if args.local_nodes < 1:
            parser.error(f"--local-nodes: found {args.local_nodes}; expected at least 1")
        config = _config(parser, args)  # a wrong flag is told once, before any agent starts
        _tell(args)
        _tell_policy(config.agent.submission, abilities_of(args.platform))
        name, given_options = args.node_id or LOCAL_NODE, parse_local(args.platform)
        nodes_there = [f"{name}{number}" for number in range(args.local_nodes)]
        if strange := [node for node, _ in given_options.preempt if node not in nodes_there]:
            parser.error(f"--platform: preempt={strange[0]}@...: there is no such node, only {', '.join(nodes_there)}")
        socket_path = paths.platform_socket(args.store)
        given_here = agent_argv(args, given, f"local://{socket_path}")
        nodes = LocalNodes(
            nodes=args.local_nodes,
            command=lambda place, launch: local_argv(place, launch, given_here),
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
    if args.leadership == "only":
        return _run_master(config.candidacy)
    if args.local_parent < 0:
        _tell(args)
        _tell_limits(config.agent.slots)
        _tell_policy(config.agent.submission, abilities_of(args.platform))
        _tell_others(args, config.agent.submission.spec)
    return asyncio.run(run_node(config))


def _tell_limits(slots: int) -> None:
    """Few open files make workers, stores and masters fail one by one, each with words of its own."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES + FILES_PER_WORKER * slots
    if allowed < wanted:
        print(
            f"ftrun: only {plural(allowed, 'file')} may be open here (ulimit -n); {plural(slots, 'worker')} may need "
            f"{wanted}, and what it cannot open it cannot start",
            file=sys.stderr,
        )


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
    for name, why in having(Treatment.UNUSED).items():
        if getattr(args, name) is not None:
            print(f"ftrun: --{name.replace('_', '-')} has nothing to set here: {why}", file=sys.stderr)
    if args.rdzv_endpoint and "://" not in args.rdzv_endpoint:
        print(
            f"ftrun: --rdzv-endpoint {args.rdzv_endpoint} is not used: nodes meet in the store (--store), which "
            "several machines share as etcd://HOST:PORT",
            file=sys.stderr,
        )
    print(
        f"ftrun: job {args.job}, log in {args.store}; look at it with: {_ftctl(args)} status --job {args.job}",
        file=sys.stderr,
    )


def _tell_others(args: argparse.Namespace, spec: JobSpec) -> None:
    """Nodes of one job meet by its name and in its store; who has not said them waits for nobody who could come."""
    if spec.nodes_min < 2 or args.local_nodes is not None:
        return
    where = "; a store in SQLite is this machine's: nodes of several share --store etcd://HOST:PORT"
    print(
        f"ftrun: waiting for {spec.nodes_min - 1} more, to be started with --job {args.job} and the same --store"
        + (where if args.store.startswith("sqlite:") else ""),
        file=sys.stderr,
    )


def _leave_within_s(parser: argparse.ArgumentParser, text: str | None) -> float | None:
    found = options.seconds(parser, "--leave-within", text)
    if found is not None and found <= GOODBYE_S:
        parser.error(f"--leave-within: found {text}; the goodbye alone takes up to {GOODBYE_S:g} s, expected more")
    return found


def _ftctl(args: argparse.Namespace) -> str:
    """``ftctl`` as it finds the job from here."""
    store = elsewhere(args.store)
    return f"ftctl --store {shlex.quote(store)}" if store else "ftctl"


def _tell_policy(asked: Submission, abilities: Sequence[str]) -> None:
    """What is worth to be told before anything starts; whoever chose a preset hears what of it cannot be done."""
    for note in notes(asked.policy):
        print(f"ftrun: {asked.policy.source}: {note}", file=sys.stderr)
    over = passed_over(asked.policy, abilities) if asked.policy.text else []
    if over:
        print(
            f"ftrun: passed over for want of abilities: {', '.join(over)}; see: ftctl policy check "
            f"{asked.policy.source.partition(' with ')[0]}",
            file=sys.stderr,
        )


def agent_argv(args: argparse.Namespace, given: Sequence[str], platform: str) -> list[str]:
    """An agent's command line: the user's, with job, store and platform set behind the flags, before the script."""
    script = len(given) - 1 - len(args.args)
    flags = given[:script] if given[script - 1 : script] != ["--"] else given[: script - 1]
    return [*flags, "--job", args.job, "--store", args.store, "--platform", platform, *given[script:]]


def local_argv(place: Place, launch: str, given: Sequence[str]) -> list[str]:
    """The command line that starts the agent of a place of ``--local-nodes``; ``given`` is of ``agent_argv``."""
    hidden = {"place": place.number, "life": place.life, "parent": os.getpid(), "launch": launch}
    flags = [word for name, value in hidden.items() for word in (f"--local-{name}", str(value))]
    return [sys.executable, "-m", "ftcore.cli.ftrun", *flags, *given]


def _job_name(args: argparse.Namespace) -> str:
    named: str | None = args.job or (args.rdzv_id if args.rdzv_id not in (None, "none") else None)
    if named is None:
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", Path(args.script).stem).strip("-.") or "job"
        named = f"{stem[:40]}-{time.strftime('%Y%m%d-%H%M%S')}-{random.randrange(16**4):04x}"
    check_job_name(named)
    return named


def _platform(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """URL of what launches nodes; empty: nothing does."""
    url = str(args.platform or os.environ.get(PLATFORM_ENV) or ("local:" if args.local_nodes is not None else ""))
    if not url:
        return ""
    scheme = check_url(url)
    if (scheme == LOCAL) != (args.local_nodes is not None):
        parser.error(f"--platform: {url} is " + ("for --local-nodes" if scheme == LOCAL else "not for --local-nodes"))
    return url


def _store(args: argparse.Namespace) -> str:
    named = args.store or (args.rdzv_endpoint if args.rdzv_endpoint and "://" in args.rdzv_endpoint else None)
    url = str(named or os.environ.get("FTCORE_STORE") or default_store_url())
    check_store_url(url)
    if url.startswith(("file:", "memory:")):
        why = "a read-only archive" if url.startswith("file:") else "the memory of a single process"
        raise UsageError(f"--store: {url} is {why}; a job needs sqlite: or etcd:")
    return url


def _config(parser: argparse.ArgumentParser, args: argparse.Namespace) -> NodeConfig:
    """What this node is to do. Leaves nothing on disk where it refuses; only the last of it makes a file, the token."""
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
        virtual_local_rank=_virtual_local_rank(parser, args, slots),
    )
    config = NodeConfig(
        agent=agent,
        candidacy=Candidacy(
            store=args.store,
            job=args.job,
            keep_events=args.keep_events,
            snapshot_events=args.snapshot_events,
            archive=archive_dir(args.archive),
            advertise=address,
            platform=args.platform,
            nodes=spec.nodes_max,
            log_level=args.log_level,
        ),
        output=_output(parser, args),
        preload=options.preload(parser, args),
        leads=args.leadership != "never",
        alone=alone,
        tells=alone or (not local and tells_here(args.node_rank, spec.nodes_max)),
        parent=args.local_parent if args.local_parent > 0 else 0,
        store_port=args.master_port,
        signals=options.signals(parser, args.signals_to_handle),
    )
    if args.local_parent < 0 and args.leadership != "only":
        _check_script(spec)
    return attrs.evolve(config, agent=attrs.evolve(agent, security=_security(args, address)))


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
    """What the user asked for, once no world can be found that it contradicts."""
    if args.standalone and args.nnodes not in (None, "1", "1:1"):
        parser.error(f"--standalone is one node, but --nnodes says {args.nnodes}; leave one of them out")
    nodes_min, nodes_max = options.node_range(parser, args.nnodes or str(args.local_nodes or 1))
    if args.local_nodes is not None and args.local_nodes < nodes_min:
        least = plural(nodes_min, "node")
        parser.error(f"--nnodes wants at least {least}, --local-nodes plays only {args.local_nodes}")
    if args.module and args.no_python and not args.run_path:
        parser.error("--module and --no-python exclude each other: a module is run by python; leave one of them out")
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
    )
    if why := impossible(spec):
        raise UsageError(why)
    if args.local_nodes is not None and not usable(args.local_nodes, spec):
        smallest = next_size(spec, 0)
        parser.error(
            f"--local-nodes: {plural(args.local_nodes, 'node makes', 'nodes make')} no world; the smallest that may be "
            f"formed has {smallest}"
        )
    return spec


def _timing(
    parser: argparse.ArgumentParser, join_window_s: float | None = None, shutdown_timeout_s: int | None = None
) -> Timing:
    """The job's time constants: the defaults, with what the user or (in tests of ftcore) the environment says."""
    timing = base_timing()
    if shutdown_timeout_s is not None:
        back_s = max(timing.return_window_s, 2.0 * shutdown_timeout_s)
        timing = attrs.evolve(timing, stop_grace_s=float(shutdown_timeout_s), return_window_s=back_s)
    if join_window_s is None:
        return timing
    if not 0 <= join_window_s <= JOIN_WINDOW_MAX_S:
        parser.error(f"--join-window: found {join_window_s:g}; expected seconds, 0 to {JOIN_WINDOW_MAX_S:.0f}")
    return attrs.evolve(timing, join_window_s=join_window_s)


def _lead_delay_s(args: argparse.Namespace, *, alone: bool) -> float | None:
    """How long nobody must lead before this node puts up a candidate: the first at once, the rest in their order."""
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
        except SystemExit as end:  # of the argument parser, which has said why
            code = end.code if isinstance(end.code, int) else 2
        except KeyboardInterrupt:
            print("ftrun: interrupted before the job began", file=sys.stderr)
            code = INTERRUPTED
        except Exception:
            traceback.print_exc()
        if warm is not None:
            processes.end_child(warm.pid)  # of a job that never began nobody has taken it over
    end_process(code)
