"""What workers leave behind, as facts: notes on their pages; of a failure its error file, output and last steps."""

from pathlib import Path

import attrs

from ftcore.events.worker import EVIDENCE_BYTES_MAX, FaultObserved, WorkerFailed
from ftcore.faults.window import StepRing
from ftcore.ids import SECOND, Round
from ftcore.ports import Supervisor
from ftcore.runtime.agent.errorfile import read_error_file
from ftcore.runtime.agent.watch_notes import NotesWatch, Told


class Evidence:
    """Of one node's workers.

    Args:
        node: the node.
        supervisor: runs them.
    """

    def __init__(self, node: str, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._notes = NotesWatch(node)
        self._ring = StepRing()

    def begin(self, round_: Round, base_rank: int) -> None:
        """Workers of a new round run; see ``NotesWatch``."""
        self._notes.begin(round_, base_rank)
        self._ring.begin(base_rank)

    def notes(self, now: float, incarnation: str) -> list[Told]:
        """What the workers left on their pages since they were read last.

        Args:
            now: monotonic seconds.
            incarnation: the agent's life.
        """
        pages = self._supervisor.progress()
        self._ring.take(pages)
        return [self._with_window(told, now) for told in self._notes.look(pages, now, incarnation)]

    def _with_window(self, told: Told, now: float) -> Told:
        if not isinstance(told.fact, FaultObserved):
            return told
        mono = int(now * SECOND) if told.mono is None else told.mono
        window = self._ring.window(mono, told.fact.rank, len(told.fact.message.encode()))
        return attrs.evolve(told, fact=attrs.evolve(told.fact, last=window))

    def of_failure(self, failed: WorkerFailed, mono: int) -> WorkerFailed:
        """The failure of a worker, completed.

        Args:
            failed: the failure.
            mono: monotonic nanoseconds at which it happened.
        """
        error_file = self._supervisor.error_file(failed.local_rank)
        error = read_error_file(error_file)
        tail = self._supervisor.tail(failed.local_rank, EVIDENCE_BYTES_MAX // 2)
        used = len(tail.encode()) + (len(error.message.encode() + error.py_callstack.encode()) if error else 0)
        return attrs.evolve(
            failed,
            error=error,
            tail=tail,
            last=self._ring.window(mono, failed.rank, used),
            log_dir=str(Path(error_file).parent) if error_file else "",  # a launcher may keep its logs elsewhere
        )
