"""Makes the overview in the snapshots of a job's log; see ``ports.OverviewMaker``."""

from collections.abc import Sequence

from ftcore.events.codec import decode
from ftcore.ids import Seq
from ftcore.logs.overviews import FILE_BYTES_MAX, code_digest
from ftcore.replay.overview import JobOverview, OverviewLabel, label_in, pack_overview, restore_overview


class LogOverview:
    """See ``ports.OverviewMaker``."""

    def __init__(self) -> None:
        self._overview = JobOverview()
        self._code = ""

    def begin(self, stored: bytes, digest: str) -> Seq:
        """See ``ports.OverviewMaker``."""
        self._code = code_digest()
        label = label_in(stored)
        if label is not None and digest and (label.code, label.digest) == (self._code, digest):
            self._overview = restore_overview(stored, label) or self._overview
        return Seq(self._overview.state.seq)

    def feed(self, bodies: Sequence[bytes]) -> None:
        """See ``ports.OverviewMaker``."""
        for body in bodies:
            self._overview.feed(decode(body))

    def make(self, digest: str) -> bytes:
        """See ``ports.OverviewMaker``."""
        if not (self._code and digest):
            return b""
        label = OverviewLabel(code=self._code, seq=self._overview.state.seq, digest=digest)
        stored = pack_overview(self._overview, label)
        return stored if stored is not None and len(stored) <= FILE_BYTES_MAX else b""
