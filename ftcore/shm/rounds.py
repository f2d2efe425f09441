"""The channel between an agent and one of its workers, by which the worker leaves a round and enters the next one.

It is a pair of sockets with messages of ``messages``; the worker finds its end through ``FTCORE_ROUNDS_FD``.

| message | from | meaning |
|---|---|---|
| ``{"leave": number, "without": ranks}`` | agent | leave the round; the memory of these global ranks is damaged |
| ``{"left": number}`` | worker | the answer: it has left its process groups, and waits with its state |
| ``{"start": {"env": variables}}`` | agent | enter the next round; with standard output, standard error and page |
| ``{"how": "kept"}`` | worker | the answer: it enters the round |
| ``{"fault": {"kind", "step", "message", "values"}}`` | worker | what it has noticed, as in ``fault.observed`` |

A worker that notices a fault which ends no process leaves by itself, and waits. It answers each order to leave, also
when it has left already: it then saves in memory what it can.
"""

from typing import Final

ROUNDS_FD_ENV: Final = "FTCORE_ROUNDS_FD"
"""Environment variable with the descriptor number of a worker's channel."""
