"""The live page of a job: ``ftrun --observe page://HOST:PORT``, served beside the master that leads.

| part | module |
|---|---|
| the observer, found by entry point | ``adapter`` |
| its URL and options | ``url`` |
| follows the job, publishes the newest view | ``publish`` |
| HTTP: the page's files, the view as JSON and as server-sent events | ``server``, ``streams`` |
| the page's token | ``access`` |
| the page itself | ``assets/`` |

It is an observer (``runtime/observers.py``): a process of its own, so nothing that a reader of the page does reaches
the master.
"""
