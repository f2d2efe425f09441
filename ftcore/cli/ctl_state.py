"""The newest state of a log, which a command folds; apart from ``ctl_store``, whose importers may need no state."""

from ftcore.cli.ctl_reading import LogReading
from ftcore.events.envelope import Event
from ftcore.events.job import JobProgressed
from ftcore.ids import Seq
from ftcore.ports import AppendOnlyLog
from ftcore.replay.reading import Folder, read_async
from ftcore.states.model import JobState
from ftcore.states.snapshot import recall


async def current_state(log: AppendOnlyLog, until: Seq | None = None) -> JobState:
    """The state at the end of a log, or after ``until``, folded from the newest usable snapshot or from the start."""
    restored = await recall(log, until)
    folder = Folder(restored.state)
    await read_async(log.read(Seq(restored.state.seq), until), folder)
    return folder.state


class StepClock:
    """A reader that notes when the newest completed step became known; goes after the ``Folder`` of the same events.

    Attributes:
        at: the master's time, nanoseconds since the epoch; None: before the events that were read.
    """

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._step = state.training.step, state.training.step_round
        self.at: int | None = None

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        step = self._state.training.step, self._state.training.step_round
        if step != self._step or isinstance(event.data, JobProgressed):
            self._step, self.at = step, event.time


async def state_and_step_time(reading: LogReading) -> tuple[JobState, int | None]:
    """``current_state`` as far as the log can be read, and when its newest step became known; None if that is before
    the newest snapshot."""
    restored = await recall(reading.log, None)
    folder, clock = Folder(restored.state), StepClock(restored.state)
    await reading.feed(folder, clock, after=Seq(restored.state.seq))
    return folder.state, clock.at
