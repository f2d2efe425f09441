"""Contents of one job's log in memory, and the conditions for changes. Not thread-safe.

The in-memory log adds threads and followers; the simulated store adds a network and leases.
"""

from collections.abc import Sequence

from ftcore.errors import Conflict, Fenced
from ftcore.events.codec import GENESIS, chain
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.rules import truncated
from ftcore.ports import SNAPSHOTS_KEPT, Candidate, Floor, Snapshot


class LogContents:
    """The encoded events of one job after the floor, its snapshots, and the newest term.

    Args:
        job: the job, for error messages.
    """

    def __init__(self, job: JobName) -> None:
        self.bodies: list[bytes] = []
        self.floor = Floor(seq=Seq(0), digest=GENESIS.hex())
        self.term = Term(0)
        self.candidate: Candidate | None = None
        self._job = job
        self._digests = [GENESIS]  # up to the floor, then up to each event after it
        self._snapshots: list[Snapshot] = []

    @property
    def last(self) -> Seq:
        """The seq of the last event."""
        return Seq(self.floor.seq + len(self.bodies))

    def begin_term(self, candidate: Candidate) -> Term:
        """Begin the term of a candidate that won an election."""
        self.term, self.candidate = Term(self.term + 1), candidate
        return self.term

    def append(self, bodies: Sequence[bytes], term: Term, expected: Seq) -> bool:
        """Append encoded events, all or none.

        Args:
            bodies: the events.
            term: the writer's term.
            expected: the log's last seq, as the writer knows it.

        Returns:
            False if the log has these events after ``expected`` already.

        Raises:
            Fenced: the term is not the newest.
            Conflict: the log's last seq is not ``expected``, and its events after it differ.
        """
        self._check_term(term)
        if self.last == expected:
            self.bodies += bodies
            for body in bodies:
                self._digests.append(chain(self._digests[-1], body))
            return True
        at = expected - self.floor.seq
        if at < 0 or self.bodies[at : at + len(bodies)] != list(bodies):
            raise Conflict(f"job {self._job}: the log ends with event {self.last}, not {expected}", self.last)
        return False

    def part(self, after: Seq, until: Seq | None) -> list[bytes]:
        """The bodies with ``after < seq <= until`` (None: to the end); raises ``Truncated``."""
        floor = self.floor.seq
        if after < floor and (until is None or until > after):
            raise truncated(self._job, after, self.floor)
        return self.bodies[after - floor : None if until is None else max(0, until - floor)]

    def digest_at(self, seq: Seq) -> str:
        """See ``ports.EventLog.digest_at``."""
        return self._digests[seq - self.floor.seq].hex() if self.floor.seq <= seq <= self.last else ""

    def truncate(self, until: Seq, term: Term, archive: str) -> Floor:
        """See ``ports.EventLog.truncate``."""
        self._check_term(term)
        count = min(until, self.last - 1) - self.floor.seq
        if count > 0:
            del self.bodies[:count], self._digests[:count]
            self.floor = Floor(seq=Seq(self.floor.seq + count), digest=self._digests[0].hex(), archive=archive)
        return self.floor

    def save_snapshot(self, snapshot: Snapshot, term: Term) -> None:
        """See ``ports.EventLog.save_snapshot``."""
        self._check_term(term)
        others = [kept for kept in self._snapshots if kept.seq != snapshot.seq]
        self._snapshots = sorted([*others, snapshot], key=lambda kept: kept.seq)[-SNAPSHOTS_KEPT:]

    def snapshot(self, until: Seq | None) -> Snapshot | None:
        """See ``ports.EventLog.snapshot``."""
        return next((kept for kept in reversed(self._snapshots) if until is None or kept.seq <= until), None)

    def _check_term(self, term: Term) -> None:
        if term < 1 or term != self.term:
            raise Fenced(f"job {self._job}: write of term {term} refused: the current term is {self.term}")
