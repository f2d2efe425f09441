"""The formats of ``ftctl export``; see ``ftcore.ExportFormat``.

House rule: the libraries are imported when a format is used, not when ``ftctl`` looks for formats.
"""

from collections.abc import AsyncIterator

from ftcore import Event, ExportFormat, ExportOutput


async def _cloudevents(job: str, events: AsyncIterator[Event], output: ExportOutput) -> None:
    from ftcore_export.cloud import CloudEvents

    converter = CloudEvents(job)
    async for event in events:
        output.write(converter.line(event))


async def _parquet(job: str, events: AsyncIterator[Event], output: ExportOutput) -> None:
    from ftcore_export.table import ParquetTable

    with ParquetTable(job, output) as table:
        async for event in events:
            table.add(event)


CLOUDEVENTS = ExportFormat(write=_cloudevents, name="a file of CloudEvents", begins=b'{"specversion":')
PARQUET = ExportFormat(write=_parquet, name="a Parquet file", begins=b"PAR1")
