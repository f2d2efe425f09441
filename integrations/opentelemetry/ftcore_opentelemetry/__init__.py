"""OpenTelemetry traces of a job's incidents: ``ftrun --observe otlp://HOST:4318``.

| part | module |
|---|---|
| the spans of an incident, as data: pure | ``spans`` |
| the same as spans of the SDK | ``traces`` |
| the observer: sends them over OTLP/HTTP | ``adapter``, ``observe`` |

Everything is read from the job's event log. ``ftcore`` does not know this package.
"""
