"""Events of the master role."""

from ftcore.events.payload import Payload
from ftcore.events.registry import fact


@fact("master.elected")
class MasterElected(Payload, frozen=True, kw_only=True):
    """A master was elected; the first event of its term.

    Args:
        host: its host's name.
        pid: its process ID.
        address: gRPC target at which agents and operators reach it.
        version: its ftcore version.
        log_id: the log's identity, a UUID, if the log had none: set in the first event of every log, and in the first
            term of this release in a log that an older release began. Empty in every other term.
        decides: the revision of the decision rules that it uses: see ``states/revisions.py``.
    """

    host: str
    pid: int
    address: str
    version: str
    log_id: str = ""
    decides: int = 0
