"""The order that names the steps after which workers save to storage."""

import asyncio

import pytest

from ftcore.commands import PaceSaves
from ftcore.errors import Refused
from ftcore.ids import Round
from ftcore.ports import Progress
from ftcore.runtime.agent.workers.pace import SavePacer


class PacedPage:
    def __init__(self) -> None:
        self.told: tuple[int, int] | None = None

    def pace(self, every: int, since: int) -> None:
        self.told = every, since


def progress(step: int) -> Progress:
    return Progress(steps=3, step=step, absolute=True, mono=0, loss=None)


@pytest.mark.parametrize(("steps", "refusal"), [((37, 39), ""), ((37, 40), "a worker has completed step 40")])
def test_workers_are_told(steps: tuple[int, int], refusal: str) -> None:
    """All that live are; a node whose worker has passed the first step says so, and its workers obey from the next."""
    one, other = PacedPage(), PacedPage()
    pages = (progress(steps[0]), None, progress(steps[1]))
    performer = SavePacer(lambda: (one, None, other), lambda: pages)
    done = performer.perform(PaceSaves(round=Round(1), every=20, since=40), "e")
    if refusal:
        with pytest.raises(Refused, match=refusal):
            asyncio.run(done)
    else:
        assert asyncio.run(done).step == 37
    assert one.told == other.told == (20, 40)
