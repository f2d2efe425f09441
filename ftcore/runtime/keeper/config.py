"""What an agent tells its keeper: its configuration, and with each round the copies of it."""

from typing import Final

import msgspec

LISTENER_FD, CONTROL_FD, COPIES_FD = 3, 4, 5
"""Descriptors of a keeper: its listening socket, its agent, and with the argument ``COPIES`` a listening TCP socket."""

COPIES: Final = "copies"

LINGER_S: Final = 600.0
"""How long a keeper without an agent keeps its memory, in seconds."""

PEER_S: Final = 15.0
"""Timeout of a connection to another keeper, in seconds."""


class CopyAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How keepers of a job authenticate each other. Its text has no secret.

    Args:
        token: the job's token; empty: none is required.
        ca: PEM file with the CA of the job's certificates; empty: connections are not encrypted.
        cert: PEM file with the certificate chain.
        key: PEM file with its key.
        name: the name in every certificate; empty: the node's address.
        mutual: the caller must show a certificate, too.
    """

    token: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    name: str = ""
    mutual: bool = True

    def __repr__(self) -> str:
        """Leave out the token."""
        return f"CopyAccess(ca={self.ca!r}, cert={self.cert!r}, key={self.key!r}, name={self.name!r})"


class BuddyAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The keeper of another node.

    Args:
        node: the node's name.
        address: its host name or address.
        port: its port.
    """

    node: str
    address: str
    port: int


class BuddyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a node in the copies of a round.

    Args:
        ranks: number of ranks of this node.
        buddies: keepers that get copies of its shards.
        wards: nodes of whose shards it takes copies.
    """

    ranks: int = 0
    buddies: tuple[BuddyAddress, ...] = ()
    wards: tuple[str, ...] = ()


class KeeperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a keeper.

    Args:
        job: the job's name.
        log: the identity of the job's log.
        node: the node's name.
        url: path or URL of the checkpoints; empty: memory only.
        keep: newest checkpoints that retention keeps.
        keep_every: retention also keeps the first checkpoint of every so many steps; 0: no others.
        bandwidth: limit for writing to storage, and likewise for copying to other nodes, in bytes per second; 0: none.
        memory: most bytes of staging memory; 0: what the machine has.
        linger_s: how long the keeper keeps its memory after its agent has died, in seconds.
        access: how it authenticates other keepers.
        peer_s: timeout of a connection to another keeper on which nothing moves, in seconds.
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
    access: CopyAccess = CopyAccess()
    peer_s: float = PEER_S

    @property
    def owner(self) -> tuple[str, str]:
        """Whose memory it is: an agent may take it over only for the same node of the same job."""
        return self.job, self.node
