"""Evidence of workers as facts: notes on their pages; for a failure also error file, output and last steps."""

from collections.abc import Sequence
from pathlib import Path

import attrs
import msgspec

from ftcore.events.worker import EVIDENCE_BYTES_MAX, FaultObserved, WorkerFailed
from ftcore.faults.window import StepRing
from ftcore.ids import SECOND, Round
from ftcore.ports import Progress, Supervisor
from ftcore.runtime.agent.telemetry.errorfile import read_error_file
from ftcore.runtime.agent.telemetry.watch_notes import NoteFact, NotesWatch


class Evidence:
    """Collects the evidence of one node's workers.

    Args:
        node: the node.
        supervisor: runs the workers.
    """

    def __init__(self, node: str, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._notes = NotesWatch(node)
        self._ring = StepRing()

    def begin(self, round_: Round, base_rank: int) -> None:
        """Begin a new round; see ``NotesWatch``."""
        self._notes.begin(round_, base_rank)
        self._ring.begin(base_rank)

    def notes(self, pages: Sequence[Progress | None], now: float, incarnation: str) -> list[NoteFact]:
        """The new notes on the workers' pages.

        Args:
            pages: their contents, by local rank.
            now: monotonic seconds.
            incarnation: the agent's incarnation.
        """
        self._ring.take(pages)
        return [self._with_window(note, now) for note in self._notes.read(pages, now, incarnation)]

    def _with_window(self, note: NoteFact, now: float) -> NoteFact:
        if not isinstance(note.fact, FaultObserved):
            return note
        mono = int(now * SECOND) if note.mono is None else note.mono
        window = self._ring.window(mono, note.fact.rank, len(note.fact.message.encode()))
        return attrs.evolve(note, fact=msgspec.structs.replace(note.fact, last=window))

    def of_failure(self, failed: WorkerFailed, mono: int) -> WorkerFailed:
        """The failure of a worker, with its evidence.

        Args:
            failed: the failure.
            mono: time of the failure in monotonic nanoseconds.
        """
        error_file = self._supervisor.error_file(failed.local_rank)
        error = read_error_file(error_file)
        tail = self._supervisor.tail(failed.local_rank, EVIDENCE_BYTES_MAX // 2)
        used = len(tail.encode()) + (len(error.message.encode() + error.py_callstack.encode()) if error else 0)
        return msgspec.structs.replace(
            failed,
            error=error,
            tail=tail,
            last=self._ring.window(mono, failed.rank, used),
            log_dir=str(Path(error_file).parent) if error_file else "",  # a launcher may have its own log directory
        )
