"""What an agent tells its keeper first."""

from typing import Final

import msgspec

LINGER_S: Final = 600.0
"""How long a keeper without an agent keeps its memory, in seconds."""


class KeeperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a keeper.

    Args:
        job: the job's name.
        log: the identity of the job's log.
        node: the node's name.
        url: path or URL of the checkpoints; empty: memory only.
        keep: newest checkpoints that retention keeps.
        keep_every: retention also keeps the first checkpoint of every so many steps; 0: no others.
        bandwidth: limit for writing to storage in bytes per second; 0: none.
        memory: most bytes of staging memory; 0: what the machine has.
        linger_s: how long the keeper keeps its memory after its agent has died, in seconds.
    """

    job: str
    log: str
    node: str
    url: str = ""
    keep: int = 0
    keep_every: int = 0
    bandwidth: float = 0
    memory: int = 0
    linger_s: float = LINGER_S

    @property
    def owner(self) -> tuple[str, str]:
        """Whose memory it is: an agent may take it over only for the same node of the same job."""
        return self.job, self.node
