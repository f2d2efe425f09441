"""Phases of steps on the progress page."""

import mmap
import os

import pytest

from ftcore.shm import page
from ftcore.shm.phases import BLOCKS_MAX, PHASES, ROLE_BYTES_MAX, PhaseBlock, PhaseWriter


@pytest.fixture
def writer(fd: int) -> PhaseWriter:
    """The worker's side."""
    made = page.PageWriter(fd).phases
    assert made is not None
    return made


def test_the_last_blocks_are_read_in_order(writer: PhaseWriter, reader: page.PageReader) -> None:
    """Older ones are overwritten; the numbers tell what was missed."""
    assert reader.blocks() == ()
    for number in range(1, BLOCKS_MAX + 3):
        writer.wrote(10, number % 2 == 1, 100 + number, 50, tuple(range(number, number + len(PHASES))))
    assert [block.number for block in reader.blocks()] == [3, 4, 5, 6]
    assert reader.blocks()[0] == PhaseBlock(3, 10, True, 103, 50, (3, 4, 5, 6, 7, 8))


def test_a_block_that_is_being_written_is_left_out(writer: PhaseWriter, reader: page.PageReader, fd: int) -> None:
    """Its stamp is odd."""
    writer.wrote(10, False, 1, 1, (0,) * len(PHASES))
    writer.wrote(10, False, 2, 2, (0,) * len(PHASES))
    with mmap.mmap(fd, page.PAGE_BYTES) as view:
        view[8 * 920 : 8 * 921] = (1).to_bytes(8, "little")
    assert [block.number for block in reader.blocks()] == [2]


def test_a_role_is_read_as_written(writer: PhaseWriter, reader: page.PageReader, fd: int) -> None:
    """Long names are cut; a damaged length is not followed."""
    assert reader.role() == ("", False)
    writer.role("stage 0", True)
    assert reader.role() == ("stage 0", True)
    writer.role("x" * 100, False)
    assert reader.role() == ("x" * ROLE_BYTES_MAX, False)
    with mmap.mmap(fd, page.PAGE_BYTES) as view:
        view[8 * 769 : 8 * 770] = b"\xff" * 8
    assert len(reader.role()[0]) <= ROLE_BYTES_MAX


@pytest.mark.parametrize("version", [b"ftPage01", b"ftPage02", b"ftPage03"])
def test_older_pages_have_no_phases(version: bytes) -> None:
    """The page of the agent of an older ftcore has 4 KiB; the worker's side maps no more."""
    fd = os.memfd_create("old")
    os.ftruncate(fd, 4096)
    os.pwrite(fd, version, 0)
    writer = page.PageWriter(fd)
    assert writer.phases is None
    writer.write(1, 1, False, 1, None, None)
    os.close(fd)
