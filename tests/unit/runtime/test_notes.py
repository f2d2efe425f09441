"""The rings of notes on a progress page: overwriting, incomplete notes, and pages of other versions."""

import math
import mmap
import os
from collections.abc import Iterator

import pytest

from ftcore.shm import page
from ftcore.shm.notes import FINDINGS_MAX, KINDS, PATH_BYTES_MAX, SAVES_MAX, CheckpointNote, FindingNote


@pytest.fixture
def fd() -> Iterator[int]:
    """A page."""
    made = page.create()
    yield made
    os.close(made)


@pytest.fixture
def words(fd: int) -> Iterator[memoryview]:
    """The page as 64-bit words."""
    with mmap.mmap(fd, page.PAGE_BYTES) as shared:
        whole = memoryview(shared)
        view = whole.cast("q")
        yield view
        view.release()
        whole.release()


@pytest.fixture
def reader(fd: int) -> Iterator[page.PageReader]:
    """The agent's side of the page."""
    made = page.PageReader(fd)
    yield made
    made.close()


def leave(writer: page.PageWriter, *steps: int) -> None:
    assert writer.notes is not None
    for step in steps:
        writer.notes.found("loss-spike", step, step - 1, 77, 9.5, 2.5, 31.0, 8.0)
        writer.notes.saved(step, f"/checkpoints/{step}", 1.5, 3)


def test_notes_come_out_as_they_went_in(fd: int, reader: page.PageReader) -> None:
    """All fields of a finding and of a checkpoint; an empty page has no notes."""
    assert (reader.findings(), reader.saves()) == ((), ())
    leave(page.PageWriter(fd), 120)
    assert reader.findings() == (FindingNote(1, "loss-spike", 120, 119, 77, 9.5, 2.5, 31.0, 8.0),)
    assert reader.saves() == (CheckpointNote(1, 120, "/checkpoints/120", 1.5, 3),)


def test_figures_need_not_be_numbers(fd: int, reader: page.PageReader) -> None:
    """A NaN and an infinite score go through the page as they are."""
    notes = page.PageWriter(fd).notes
    assert notes is not None
    notes.found("loss-nan", 1, 1, 1, math.nan, math.nan, math.inf, 8.0)
    (found,) = reader.findings()
    assert math.isnan(found.value)
    assert found.score == math.inf


def test_a_full_ring_forgets_the_oldest(fd: int, reader: page.PageReader) -> None:
    """Numbers continue, so a reader can count missed notes."""
    leave(page.PageWriter(fd), *range(1, 101))
    assert [found.number for found in reader.findings()] == list(range(101 - FINDINGS_MAX, 101))
    assert [(saved.number, saved.step) for saved in reader.saves()] == [(n, n) for n in range(101 - SAVES_MAX, 101)]


def test_a_note_that_is_being_written_is_not_read(fd: int, reader: page.PageReader, words: memoryview) -> None:
    """A writer stopped inside a slot leaves its stamp odd: only that note is missing."""
    leave(page.PageWriter(fd), 1, 2, 3)
    for first, size in ((16, 9), (160, 40)):
        words[first + size] |= 1
    assert [found.step for found in reader.findings()] == [1, 3]
    assert [saved.step for saved in reader.saves()] == [1, 3]


def test_a_kind_that_a_newer_worker_knows_is_passed_over(fd: int, reader: page.PageReader, words: memoryview) -> None:
    """Existing kinds keep their numbers; an unknown number is skipped."""
    leave(page.PageWriter(fd), 1, 2)
    words[16 + 1] = len(KINDS) + 1
    assert [found.step for found in reader.findings()] == [2]


def test_a_page_of_the_first_version_gets_no_notes(fd: int, reader: page.PageReader, words: memoryview) -> None:
    """A worker newer than its agent writes only steps."""
    words[0] = 0x3130656761507466
    writer = page.PageWriter(fd)
    writer.write(1, 7, True, 10, 0.5, None)
    assert writer.notes is None
    assert not any(words[8:])
    assert reader.read() == page.Sample(1, 7, True, 10, 0.5, None)


def test_the_sample_keeps_its_position(fd: int, words: memoryview) -> None:
    """A reader of the first version, which reads eight words, reads a page with notes correctly."""
    writer = page.PageWriter(fd)
    leave(writer, 1, 2, 3)
    writer.write(5, 7, True, 10, None, None)
    assert words[1:6].tolist() == [2, 5, 7, 1, 10]


def test_a_long_path_is_cut_between_letters(fd: int, reader: page.PageReader) -> None:
    """The rest is dropped, including an incomplete character."""
    notes = page.PageWriter(fd).notes
    assert notes is not None
    notes.saved(1, "x" + "é" * PATH_BYTES_MAX, 0.0, 0)
    assert reader.saves()[0].path == "x" + "é" * (PATH_BYTES_MAX // 2 - 1)
