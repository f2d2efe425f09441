"""Exports of real logs, read back with other programs; the how-to's queries and their output."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow
import pyarrow.parquet as pq
import pytest
from cloudevents.core.formats.json import JSONFormat
from ftcore_export.formats import CLOUDEVENTS, PARQUET
from ftcore_export.table import ROWS, SCHEMA, ParquetTable

from ftcore import Event, ExportFormat
from ftcore.logs.archive import read_events

ROOT = Path(__file__).parents[3]
LOGS = sorted((ROOT / "tests/golden/logs").rglob("*.ftlog"))
SHOWN = next(path for path in LOGS if path.stem == "etcd_two_nodes")
HOWTO = ROOT / "docs/how-to/query-events-with-duckdb.md"


def export(log: Path, form: str, to: Path | str) -> "subprocess.CompletedProcess[bytes]":
    argv = [sys.executable, "-m", "ftcore.cli.ftctl", "--store", f"file:{log}", "export", "--format", form]
    env = {name: value for name, value in os.environ.items() if not name.startswith("FTCORE_")}
    return subprocess.run([*argv, "-o", str(to)], capture_output=True, check=False, env=env)


def write(log: Path, form: ExportFormat, to: Path) -> None:
    """Export in this process."""

    async def events() -> AsyncIterator[Event]:
        for event in read_events(log):
            yield event

    with to.open("wb") as file:
        asyncio.run(form.write(log.stem, events(), file))  # type: ignore[arg-type]


def plain(event: Event) -> Any:
    """The data as JSON has it: lists instead of tuples."""
    return msgspec.json.decode(msgspec.json.encode(event.data))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_parquet_has_every_event(log: Path, tmp_path: Path) -> None:
    """Each event is a row, in order, with the types of the schema; the data is that of the log."""
    events = list(read_events(log))
    path = tmp_path / "out.parquet"
    write(log, PARQUET, path)
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    assert table.column("seq").to_pylist() == [event.seq for event in events]
    assert table.column("time_ns").to_pylist() == [event.time for event in events]
    assert table.column("time").cast("int64").to_pylist() == [event.time // 1000 for event in events]
    for row, event in zip(table.to_pylist(), events, strict=True):
        data = json.loads(row["data"])
        assert (row["type"], row["source"], row["incident"]) == (event.type, event.source, event.incident)
        if event.type != "policy.loaded":
            assert data == plain(event)
        for name in ("node", "round", "rank", "step"):
            assert row[name] == data.get(name)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_cloudevents_are_valid(log: Path, tmp_path: Path) -> None:
    """The official library reads each line; ids are unique; nothing is lost."""
    events = list(read_events(log))
    path = tmp_path / "out.jsonl"
    write(log, CLOUDEVENTS, path)
    read = [JSONFormat().read(None, line) for line in path.read_bytes().splitlines()]
    assert len({(each.get_source(), each.get_id()) for each in read}) == len(events)
    for each, event in zip(read, events, strict=True):
        assert each.get_specversion() == "1.0"
        assert each.get_type() == f"ftcore.{event.type}"
        assert int(str(each.get_extension("ftcoretime"))) == event.time
        assert int(str(each.get_extension("sequence"))) == event.seq
        if event.type != "policy.loaded":
            assert each.get_data() == plain(event)


def test_standard_output_and_other_files(tmp_path: Path) -> None:
    """A pipe gets the lines; a file of another kind is never overwritten, one of the same kind is."""
    piped = export(SHOWN, "cloudevents", "-")
    assert piped.returncode == 0 and len(piped.stdout.splitlines()) == 94
    other = tmp_path / "thesis.txt"
    other.write_text("years of work")
    refused = export(SHOWN, "parquet", other)
    assert refused.returncode == 2 and b"is not a Parquet file" in refused.stderr
    assert other.read_text() == "years of work"
    again = [export(SHOWN, "parquet", tmp_path / "a.parquet") for _ in range(2)]
    assert [done.returncode for done in again] == [0, 0] and b"was overwritten" in again[1].stderr


def test_an_unknown_format(tmp_path: Path) -> None:
    done = export(SHOWN, "parkett", tmp_path / "a")
    assert done.returncode == 2
    assert done.stderr.decode() == "ftctl: --format: found 'parkett'; did you mean parquet?\n"


class Counted:
    """An output that keeps nothing."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: bytes) -> None:
        self.bytes += len(data)


def test_a_long_log_needs_little_memory() -> None:
    """Rows are written in groups: five times the events need no more memory than one group."""
    events = list(read_events(SHOWN))
    output, peak = Counted(), 0
    tracemalloc.start()
    try:
        with ParquetTable("job", output) as table:
            for number in range(5 * ROWS):
                table.add(events[number % len(events)])
                if number == 2 * ROWS:
                    peak = tracemalloc.get_traced_memory()[1]
                    held = pyarrow.total_allocated_bytes()
                    assert output.bytes > 0, "the first groups are written before the last event is read"
            assert pyarrow.total_allocated_bytes() < held + (32 << 20)
        grown = tracemalloc.get_traced_memory()[1] - peak
    finally:
        tracemalloc.stop()
    assert grown < 8 << 20, f"{grown} bytes more than after two groups"


def blocks() -> list[tuple[str, str]]:
    """Each query of the how-to, with the output that it shows."""
    return re.findall(r"```sql\n(.*?)```\n\n```text\n(.*?)```", HOWTO.read_text(), re.DOTALL)


def test_the_queries_of_the_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prints what the page shows."""
    monkeypatch.chdir(tmp_path)
    assert export(SHOWN, "parquet", tmp_path / "llm.parquet").returncode == 0
    assert export(SHOWN, "cloudevents", tmp_path / "llm.jsonl").returncode == 0
    found = blocks()
    assert len(found) == HOWTO.read_text().count("```sql") >= 6
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for query, shown in found:
            assert shown == f"{connection.sql(query)}".rstrip() + "\n", query
