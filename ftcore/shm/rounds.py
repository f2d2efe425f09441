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

A prepared worker is started before its round, with ``FTCORE_PREPARED``. Its answer to an order to leave says that it
waits where it needs its rank; then it enters a round as the others do.
"""

from typing import Final

ROUNDS_FD_ENV: Final = "FTCORE_ROUNDS_FD"
"""Environment variable with the descriptor number of a worker's channel."""

PREPARED_ENV: Final = "FTCORE_PREPARED"
"""Set for a worker that was started before its round: it has none of the variables ``OF_ROUND``."""

OF_ROUND: Final = frozenset(
    {
        *("RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("FTCORE_ROUND", "FTCORE_BATCH", "FTCORE_RESUME", "FTCORE_RESUME_STEP", "FTCORE_ROLLBACKS"),
        *("FTCORE_SKIP", "FTCORE_PERSIST_EVERY"),
    }
)
"""Variables of a worker's environment that depend on its round and are read only where the round is needed."""
