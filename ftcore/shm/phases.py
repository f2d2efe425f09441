"""Times of a step's phases on the progress page: medians of *blocks* of steps, from a worker to its agent.

A block is ten or so steps in a row. The worker writes a block when its last step ends, so a step costs nothing here.
The last ``BLOCKS_MAX`` blocks stay on the page; an agent that reads less often misses some. A slot is a sequence lock,
as in ``notes``.

| word (8 bytes) | field | meaning |
|---|---|---|
| 912 | ``blocks`` | blocks written since the process started |
| 913 | ``role`` | length of the role's name in bytes, plus 256 if the script has declared it |
| 914 to 919 | | the role's name |
| 920 to 983 | 4 slots of 16 words | stamp, steps, device, whole, own, then the phases in the order of ``PHASES`` |

Times are nanoseconds of a step, each the median over the block, so that one slow step (a save, an evaluation) counts
for nothing. *Own* is the step without ``communication``. ``device``: 1: times of the device; 0: of the host.

House rules: this module accesses memory only. ``PHASES`` is only appended to.
"""

from typing import Final

import attrs

PHASES: Final = ("data", "forward", "backward", "optimizer", "other", "communication")
"""Phases of a step: waiting for a batch; from the batch to the backward pass; the backward pass; from there to the end
of the optimizer's step, with what the script does to the gradients; the rest of the script; waiting for other ranks.
Only the last one is not a rank's own work."""

DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER, COMMUNICATION = range(len(PHASES))

BLOCKS_MAX: Final = 4
ROLE_BYTES_MAX: Final = 48

_BLOCKS, _ROLE, _NAME, _SLOTS, _SLOT_WORDS = 912, 913, 914, 920, 16
_DECLARED: Final = 256


@attrs.frozen
class PhaseBlock:
    """Times of a step in a block of steps, in nanoseconds; see the module's table.

    Args:
        number: its number within the process, from 1.
        steps: number of steps.
        device: the times are those of the device.
        whole: from step to step.
        own: the rank's own work.
        phases: by phase.
    """

    number: int
    steps: int
    device: bool
    whole: int
    own: int
    phases: tuple[int, ...]


class PhaseWriter:
    """The worker's side.

    Args:
        view: the page.
    """

    def __init__(self, view: memoryview) -> None:
        self._bytes = view
        self._words = view.cast("q")

    def role(self, name: str, declared: bool) -> None:
        """Write which of the other ranks do the same work: those with the same name."""
        text = name.encode(errors="replace")[:ROLE_BYTES_MAX]
        self._words[_ROLE] = 0
        self._bytes[8 * _NAME : 8 * _NAME + len(text)] = text
        self._words[_ROLE] = len(text) + (_DECLARED if declared else 0)

    def adopt(self, former: "PhaseWriter") -> None:
        """Take over the role from the page of the round before."""
        self._words[_ROLE:_SLOTS] = former._words[_ROLE:_SLOTS]

    def wrote(self, steps: int, device: bool, whole: int, own: int, phases: tuple[int, ...]) -> None:
        """Write a block; see ``PhaseBlock``."""
        words = self._words
        count = words[_BLOCKS]
        at = _SLOTS + count % BLOCKS_MAX * _SLOT_WORDS
        words[at] = 2 * count + 1
        for place, value in enumerate((steps, device, whole, own, *phases), start=at + 1):
            words[place] = value
        words[at] = 2 * count + 2
        words[_BLOCKS] = count + 1


class PhaseReader:
    """The agent's side.

    Args:
        view: the page.
    """

    def __init__(self, view: memoryview) -> None:
        self._bytes = view
        self._words = view.cast("q")
        self._blocks: tuple[int, tuple[PhaseBlock, ...]] = (0, ())

    def role(self) -> tuple[str, bool]:
        """Return the role's name, empty if there is none, and whether the script has declared it."""
        length = self._words[_ROLE]
        text = bytes(self._bytes[8 * _NAME : 8 * _NAME + length % _DECLARED])
        return text[:ROLE_BYTES_MAX].decode(errors="ignore"), length >= _DECLARED

    def blocks(self) -> tuple[PhaseBlock, ...]:
        """Return the blocks that are not overwritten, oldest first."""
        count = self._words[_BLOCKS]
        if count != self._blocks[0]:
            read = (self._block(number) for number in range(max(0, count - BLOCKS_MAX), count))
            self._blocks = count, tuple(found for found in read if found is not None)
        return self._blocks[1]

    def close(self) -> None:
        """Release the page."""
        for view in (self._words, self._bytes):
            view.release()

    def _block(self, number: int) -> PhaseBlock | None:
        words = self._words
        at = _SLOTS + number % BLOCKS_MAX * _SLOT_WORDS
        if words[at] != 2 * number + 2:
            return None
        steps, device, whole, own, *phases = words[at + 1 : at + 5 + len(PHASES)].tolist()
        if words[at] != 2 * number + 2:
            return None
        return PhaseBlock(number + 1, steps, bool(device), whole, own, tuple(phases))
