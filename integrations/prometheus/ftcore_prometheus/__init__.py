"""Prometheus metrics of a job.

| part | module |
|---|---|
| figures of a job, folded from its log: pure | ``figures``, with ``ledger`` (use of time) and ``histogram`` |
| the same as metric families, with the master's memory | ``families``, ``catalogue``, ``live`` |
| ``ftrun --observe prometheus://HOST:PORT`` | ``adapter``, ``observe`` |
| the HTTP endpoint | ``endpoint`` |
| ``ftctl export --format prometheus`` | ``formats`` |

Everything is read from the job's event log and the leading master's memory. ``ftcore`` does not know this package.
"""
