"""Event logs in formats of other programs: ``ftctl export --format cloudevents|parquet``.

| part | module |
|---|---|
| the formats, as ``ftctl`` finds them | ``formats`` |
| CloudEvents 1.0, a JSON object a line | ``cloud`` |
| Parquet, with typed columns | ``table`` |

Events are written as they are read, so a log may be larger than the memory. ``ftcore`` does not know this package.
"""
