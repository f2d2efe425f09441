"""The words of step boundaries on a progress page: both sides, older versions of the page, and texts of errors."""

import mmap

import pytest

from ftcore.shm import page
from ftcore.shm.boundary import ERROR_BYTES_MAX, SAVES, WAITS, BoundaryState, BoundaryWords


@pytest.fixture
def words(fd: int) -> BoundaryWords:
    """The worker's side of the page."""
    made = page.PageWriter(fd).boundary
    assert made is not None
    return made


def test_a_new_page_orders_nothing_and_reports_nothing(words: BoundaryWords, reader: page.PageReader) -> None:
    """A worker without the code for boundaries looks like this too."""
    assert reader.orders.read() == BoundaryState()
    assert reader.orders.read().abilities == ()
    assert not words.reach(1)


def test_abilities_add_up(words: BoundaryWords, reader: page.PageReader) -> None:
    """The names are those of the job's abilities."""
    words.can(WAITS)
    assert reader.orders.read().abilities == ("pause",)
    words.can(SAVES)
    assert reader.orders.read().abilities == ("pause", "checkpoint")


def test_a_worker_waits_at_its_boundary_and_at_every_later_one(words: BoundaryWords, reader: page.PageReader) -> None:
    """Before it, the worker looks closer but does not wait."""
    reader.orders.stop_at(3)
    assert words.reach(2) and not words.must_wait(2)
    assert words.reach(3) and words.must_wait(3) and words.must_wait(4)
    reader.orders.stop_at(0)
    assert not words.reach(4) and not words.must_wait(4)


def test_a_worker_saves_at_one_boundary(words: BoundaryWords, reader: page.PageReader) -> None:
    """Not before it, not behind it, and not twice."""
    reader.orders.save_at(3)
    assert not words.reach(2) and words.reach(3) and words.must_save(3)
    words.saved(3)
    assert not words.must_save(3) and not words.must_save(4)
    assert (reader.orders.read().saved, reader.orders.read().error) == (3, "")


def test_a_worker_saves_to_storage_at_multiples(words: BoundaryWords, reader: page.PageReader) -> None:
    """By its own number of steps, until the agent names another one, which begins at a later step."""
    assert not words.must_persist(10, 0)
    assert [step for step in range(1, 13) if words.must_persist(step, 5)] == [5, 10]
    reader.orders.pace(4, 8)
    assert [step for step in range(1, 17) if words.must_persist(step, 5)] == [8, 12, 16]
    reader.orders.pace(10**12, 3 * 10**11)
    assert not words.must_persist(10**11, 5)


def test_the_first_boundary_at_which_a_worker_can_stop(words: BoundaryWords, reader: page.PageReader) -> None:
    """The one at which it waits, or the one after the last that it has reached."""
    assert reader.orders.read().stops_at == 1
    words.reach(4)
    assert reader.orders.read().stops_at == 5
    words.waits(True)
    assert reader.orders.read().stops_at == 4


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("OSError: no space left", "OSError: no space left"),
        ("x" * 200, "x" * ERROR_BYTES_MAX),
        ("x" + "ä" * 100, "x" + "ä" * 71),
        ("\ud800", "?"),
    ],
)
def test_the_error_of_a_save(text: str, shown: str, words: BoundaryWords, reader: page.PageReader) -> None:
    """It is cut after 144 bytes, before the character that does not fit."""
    words.saved(2, text)
    assert reader.orders.read().error == shown
    words.saved(5)
    assert reader.orders.read() == BoundaryState(saved=5)


def test_an_error_does_not_leave_the_page(words: BoundaryWords, fd: int, reader: page.PageReader) -> None:
    """A wrong length, as of a worker that has overwritten its memory, is not followed."""
    words.saved(1, "boom")
    with mmap.mmap(fd, page.PAGE_BYTES) as view:
        for length in (2**40, -1):
            view[8 * 493 : 8 * 494] = length.to_bytes(8, "little", signed=True)
            assert len(reader.orders.read().error) in (ERROR_BYTES_MAX, len("the save failed"))


@pytest.mark.parametrize("version", [b"ftPage01", b"ftPage02"])
def test_older_pages_have_no_boundaries(version: bytes, fd: int) -> None:
    """A page made by the agent of an older ftcore has other contents there."""
    with mmap.mmap(fd, page.PAGE_BYTES) as view:
        view[0:8] = version
    assert page.PageWriter(fd).boundary is None
