"""Events as a Parquet file: typed columns for what queries ask for, and the data as JSON.

A row group has ``ROWS`` events, which is all that is in memory. Integers that an event does not have are null.
"""

from types import TracebackType
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ftcore import Event, ExportOutput, __version__
from ftcore.replay import event_json

ROWS: Final = 20_000

SCHEMA: Final = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("incarnation", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("cause", pa.int64()),
        pa.field("incident", pa.string()),
        pa.field("source_time", pa.timestamp("us", tz="UTC")),
        pa.field("node", pa.string()),
        pa.field("round", pa.int64()),
        pa.field("rank", pa.int64()),
        pa.field("step", pa.int64()),
        pa.field("data", pa.string(), nullable=False),
    ]
)
"""Timestamps are in microseconds, which every reader can compute with; ``time_ns`` is the master's time in nanoseconds
since the epoch. ``source_time``: the source's own clock. ``node``, ``round``, ``rank``, ``step``: those of the data."""

_FROM_DATA: Final = {"node": str, "round": int, "rank": int, "step": int}


class _Sink:
    """What pyarrow needs of a file that it writes in order."""

    def __init__(self, output: ExportOutput) -> None:
        self._output = output
        self._written = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._output.write(bytes(data))
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class ParquetTable:
    """Writes a Parquet file; a context manager.

    Args:
        job: the job's name, in the file's metadata.
        output: takes the bytes of the file.
    """

    def __init__(self, job: str, output: ExportOutput) -> None:
        schema = SCHEMA.with_metadata({"ftcore.job": job, "ftcore.version": __version__})
        self._file = pa.PythonFile(_Sink(output), mode="w")
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def add(self, event: Event) -> None:
        """Add the next event."""
        self._rows.append(_row(event))
        if len(self._rows) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._writer.schema))
        self._rows = []

    def __enter__(self) -> "ParquetTable":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._rows:
            self._flush()
        if kind is None:
            self._writer.close()
            self._file.close()


def _row(event: Event) -> dict[str, Any]:
    data = event_json(event)["data"]
    fields = data if isinstance(data, dict) else {}
    found = {name: fields.get(name) for name in _FROM_DATA}
    return {
        "seq": event.seq,
        "time": event.time // 1000,
        "time_ns": event.time,
        "type": event.type,
        "kind": str(event.kind),
        "source": event.source,
        "incarnation": event.id.incarnation,
        "number": event.id.n,
        "term": event.term,
        "version": event.v,
        "cause": event.cause,
        "incident": event.incident,
        "source_time": event.at.wall // 1000 if event.at is not None else None,
        **{name: value if isinstance(value, _FROM_DATA[name]) else None for name, value in found.items()},
        "data": msgspec.json.encode(data).decode(),
    }
