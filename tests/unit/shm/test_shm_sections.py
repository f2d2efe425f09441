"""Sections on the progress page."""

import mmap
import os
from collections.abc import Iterator

import pytest

from ftcore.shm import page
from ftcore.shm.calls import Call, calls_of, decoded, encoded
from ftcore.shm.sections import OTHER, SLOTS, PastSection, SectionState, SectionWords, read


@pytest.fixture
def view() -> memoryview:
    """An empty page."""
    return memoryview(bytearray(page.PAGE_BYTES))


@pytest.fixture
def fd() -> Iterator[int]:
    """A new page."""
    made = page.create()
    yield made
    os.close(made)


def test_the_current_section_and_those_that_ended(view: memoryview) -> None:
    """With begin, deadline and change; a section that has not ended is not among the past ones."""
    words = SectionWords(view)
    slot = words.slot("evaluation")
    words.show(slot, 100, 500, 100)
    assert read(view) == SectionState("evaluation", 100, 500, 100)
    words.over(slot, 50, True)
    words.over(slot, 20, False)
    words.show(None, 0, 0, 150)
    words.trains()
    words.records_calls(4, 5)
    assert read(view) == SectionState(
        "", 0, 0, 150, covered=50, trains=True, calls=(4, 5), past=(PastSection("evaluation", 2, 50),)
    )


def test_further_sections_share_the_last_slot(view: memoryview) -> None:
    """No section is lost; long names are cut to their words."""
    words = SectionWords(view)
    for number in range(SLOTS + 3):
        words.over(words.slot(f"section {number}"), number, True)
    past = read(view).past
    assert [each.name for each in past] == [*(f"section {number}" for number in range(SLOTS - 1)), OTHER]
    assert past[-1].count == 4


def test_sections_that_are_being_written_are_not_read(view: memoryview) -> None:
    """A writer that died in the middle leaves an empty state."""
    words = SectionWords(view)
    words.show(words.slot("evaluation"), 100, 0, 100)
    view.cast("q")[768] |= 1
    assert read(view) == SectionState()


@pytest.mark.parametrize("version", [b"ftPage01", b"ftPage02", b"ftPage03"])
def test_an_older_page_has_no_sections(fd: int, version: bytes) -> None:
    """Its writer writes none, whatever its size, and its reader finds none."""
    os.pwrite(fd, version, 0)
    writer = page.PageWriter(fd)
    assert writer.sections is None
    reader = page.PageReader(fd)
    assert reader.sections() == SectionState()
    reader.close()


def test_a_page_of_4_kib() -> None:
    """An agent of an earlier release created it: steps are written and read, and nothing beyond its end."""
    fd = os.memfd_create("ftcore-page")
    os.ftruncate(fd, 4096)
    with mmap.mmap(fd, 4096) as view:
        view[0:8] = b"ftPage03"
    writer, reader = page.PageWriter(fd), page.PageReader(fd)
    writer.write(1, 1, True, 5, None, None)
    sample = reader.read()
    assert sample is not None and sample.steps == 1
    assert reader.sections() == SectionState()
    reader.close()
    os.close(fd)


def test_the_newest_collective_of_each_group() -> None:
    """The newest call first; sends and receives are not counted; an answer that is torn is none."""
    entries = [
        {"process_group": ["0", "default_pg"], "collective_seq_id": 1, "profiling_name": "gloo:all_reduce"},
        {"process_group": ["1", "tp"], "collective_seq_id": 4, "profiling_name": "gloo:broadcast"},
        {"process_group": ["0", "default_pg"], "collective_seq_id": 2, "profiling_name": "gloo:all_reduce"},
        {"process_group": ["1", "tp"], "collective_seq_id": 9, "profiling_name": "gloo:send", "is_p2p": True},
    ]
    calls = calls_of(entries)
    assert calls == (Call("0", 2, "all_reduce"), Call("1", 4, "broadcast"))
    assert decoded(encoded(calls)) == calls
    assert decoded(encoded(calls)[:9]) == () and decoded(b"") == () and decoded(b"[1]\n") == ()
