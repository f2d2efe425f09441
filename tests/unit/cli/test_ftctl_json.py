"""JSON of every ``ftctl`` command: a field name has one type, and stands for one thing, wherever it is printed."""

import argparse
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
from stored_checkpoints import write_checkpoint, write_shards

from ftcore.checkpoint.storage import Storage
from ftcore.cli import ctl_command, ctl_nodes, ctl_salvage
from ftcore.cli.ctl_parser import build_parser
from ftcore.cli.ftctl import main
from ftcore.events.job import JobSpec
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.archive import ArchiveWriter
from ftcore.logs.sqlite_salvage import Readable
from ftcore.ports import Floor
from ftcore.replay.explain import Asked
from ftcore.replay.request import RequestReader
from ftcore.replay.status import StandstillInfo, status_of
from ftcore.runtime.wire.frames import SEEING, Beat, Gauge, NodeInfo, NodeSeen
from ftcore.testing.driver import JobDriver

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "logs").glob("*/*.ftlog"))

NAMED = {"abilities", "by_policy", "cost_by_use", "costs", "gauges", "gpu_s_by_use", "hits", "lost", "net", "options"}
NAMED |= {"quarantined", "seconds_by_use", "unknown_types", "skipped_types", "followed"}
"""Objects whose keys are names of policies, nodes, causes and so on, not of fields."""

RAW = {"data", "folded", "values"}
"""As it is stored: the payload of an event (``docs/reference/events.md``), the folded state, and a field of it
at two points."""

TWOFOLD = {"nodes": {"list of string", "list of object"}}
"""Nodes by name, except in ``status``, which tells more of each."""


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", list: "list", dict: "object"}[type(value)]


def fields(value: Any, where: str, inside: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, type and place of each field; no value and an empty list say nothing of a type."""
    if isinstance(value, list):
        for one in value:
            yield from fields(one, where, inside)
    elif isinstance(value, dict):
        for name, told in value.items():
            if inside not in NAMED:
                if isinstance(told, list):
                    yield from ((name, f"list of {kind(one)}", where) for one in told if one is not None)
                elif told is not None:
                    yield name, kind(told), where
            if name not in RAW:
                yield from fields(told, f"{where}.{name}", name)


POLICY = "version: 1\nchain:\n- process_restart\n- stop\n"
JSONL = '{"case": "x", "text": "RuntimeError: CUDA error: uncorrectable NVLink error"}\n'
RUN = "step\tloss\n" + "".join(f"{step}\t{9.0 if step == 180 else 2 + step % 7 / 50}\n" for step in range(200))


WISHES = {"pause", "resume", "drain", "evict", "admit", "checkpoint", "stop", "note"}
"""Of these, JSON that a running master would answer is made here."""

COMMANDS = WISHES | {
    *(
        "jobs",
        "status",
        "events",
        "incidents",
        "explain",
        "goodput",
        "samples",
        "replay",
        "salvage",
        "classify",
        "import",
        "spikes",
        "simulate",
        "top",
    ),
    *("whatif", "alert", "policy check", "policy explain", "checkpoints", "bisect", "failures", "logbook", "logs"),
}


def printing_json(parser: argparse.ArgumentParser, above: str = "") -> Iterator[str]:
    """Names of the commands that have ``--format json``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from printing_json(command, f"{above} {name}".strip())
        elif "--format" in action.option_strings and "json" in (action.choices or ()):
            yield above


def driven() -> JobDriver:
    """A job with a waiting request."""
    driver = JobDriver(spec=JobSpec(argv=("t.py",), nodes_min=1, nodes_max=3), abilities=("pause",))
    driver.start()
    driver.make_steps(3)
    driver.command("evict", node="node2")
    return driver


def commands(place: Path, driver: JobDriver) -> Iterator[list[str]]:
    """Every command that prints JSON of a log or of files."""
    for name, text in (("p.yaml", POLICY), ("bad.yaml", POLICY.replace("stop", "stpo")), ("run.tsv", RUN)):
        (place / name).write_text(text)
    (place / "lines").write_text(JSONL)
    with ArchiveWriter(place / "asked.ftlog", JobName("demo")) as writer:
        for event in driver.events:
            writer.add(event)
    reading = (
        "jobs",
        "status",
        "events",
        "incidents",
        "explain",
        "goodput --price 2",
        "samples",
        "replay",
        "replay --verify",
    )
    reading += ("failures", "failures --all", "logs", "logbook", "bisect --check one-incident", "replay --diff 0 9")
    reading += ("bisect --expr run==0", "top --once")
    for log, command in itertools.product([*GOLDEN, place / "asked.ftlog"], reading):
        yield ["--store", f"file:{log}", *command.split()]
    for log in GOLDEN:
        yield ["--store", f"file:{log}", "whatif", "--policy", str(place / "p.yaml"), "--assume", "save"]
    given = ["--nodes", "4", "--days", "3", "--rate", "0.5", "--seeds", "2", "--assume", "save"]
    yield ["simulate", *given]
    yield ["classify", str(place / "lines")]
    for case in ("restart", "two"):
        yield ["import", str(Path(__file__).parents[2] / "data" / "import" / case), "-o", str(place / "imported.ftlog")]
    yield ["classify", "--jsonl", str(place / "lines")]
    yield ["spikes", str(place / "run.tsv"), "--suggest"]
    for name in ("p.yaml", "bad.yaml"):
        yield ["policy", "check", str(place / name)]
    yield ["policy", "explain", "--preset", "mindio", "--fault", "gpu-hw"]
    yield ["alert", "json://127.0.0.1:1"]
    storage = Storage(str(place / "checkpoints"))
    write_checkpoint(storage)
    write_shards(storage, 20)
    (place / "checkpoints" / write_checkpoint(storage, 30) / "shard-00001-of-00002.safetensors").unlink()
    yield ["checkpoints", "--path", storage.url]
    yield ["checkpoints", "verify", storage.url]


def told_apart(driver: JobDriver) -> Iterator[tuple[str, Any]]:
    """What only a running master, a damaged log, or an odd job would have printed."""
    gauges = {"0": Gauge(celsius=85, sm_mhz=1950, used_mib=512, trouble="device 0: too hot")}
    about = NodeInfo(host="h", phase="running", devices=("H100",), gauges=gauges, blind=SEEING, hits={"gpu-hw": 1})
    seen = NodeSeen(node="n", heard_s=0.2, beat=Beat(round=3, step=7, absolute=True, loss=1.5), about=about)
    yield "status --nodes", ctl_nodes._json(seen)
    asked = (Asked(name="stop", verdict="take", reason="it was asked for"),)
    request = RequestReader(
        seq=7, command="evict", node="n", outcome="done", reason="it is out", incident="i1", policies=[*asked]
    )
    yield "evict", ctl_command._json("job", request, "")
    odd = attrs.evolve(
        status_of(driver.state),
        replicas=((0, 1), (2, 3)),
        standstill=StandstillInfo(since=1, cause="silent", message="rank 1 sleeps"),
        nan_since=4,
        quarantined={"n": "it is slow"},
    )
    yield "status", odd.to_json()
    found = Readable(
        path=Path("/log"),
        job=JobName("job"),
        floor=Floor(seq=Seq(0), digest=""),
        events=tuple(driver.events[:3]),
        bodies=(),
        term=Term(1),
        end=Seq(9),
        why="event 4 cannot be read",
    )
    yield "salvage", ctl_salvage._json(found, Path("/damaged"))


def test_a_name_of_a_field_has_one_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that is printed as JSON: the same type under the same name, lists by what is in them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    driver = driven()
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    told = [(name, msgspec.json.decode(msgspec.json.encode(value))) for name, value in told_apart(driver)]
    for argv in commands(tmp_path, driver):
        main([*argv, "--format", "json"])
        lines = capsys.readouterr().out.splitlines()
        name = next(name for name in sorted(COMMANDS, key=len, reverse=True) if f" {name} " in f" {' '.join(argv)} ")
        told += [(name, json.loads(line)) for line in lines]
    for command, value in told:
        for name, kind, where in fields(value, command):
            found[name][kind].add(where)
    wrong = {name: dict(kinds) for name, kinds in found.items() if len(kinds) > 1 and set(kinds) != TWOFOLD.get(name)}
    assert not wrong, wrong
    assert {command for command, _ in told} >= COMMANDS - WISHES


def test_every_command_that_prints_json_is_looked_at() -> None:
    """A command that is added is added here."""
    assert set(printing_json(build_parser("0"))) == COMMANDS
