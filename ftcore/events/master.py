"""Events of the master role."""

import attrs

from ftcore.events.registry import fact


@fact("master.elected")
@attrs.frozen(kw_only=True)
class MasterElected:
    """A process took the master role; the first event that it appends in its term.

    Args:
        host: its host's name.
        pid: its process id.
        address: gRPC target at which agents and operators reach it.
        version: its ftcore.
    """

    host: str
    pid: int
    address: str
    version: str
