"""The rings of notes under any order of writing and reading, down to single stores."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ftcore.shm.notes import (
    FINDINGS_MAX,
    KINDS,
    PATH_BYTES_MAX,
    SAVES_MAX,
    CheckpointNote,
    FindingNote,
    NotesReader,
    NotesWriter,
)
from ftcore.shm.page import PAGE_BYTES

steps = st.integers(0, (1 << 63) - 1)
figures = st.floats(allow_nan=False)
findings = st.tuples(st.sampled_from(KINDS), steps, steps, steps, figures, figures, figures, figures)
saves = st.tuples(steps, st.text(max_size=PATH_BYTES_MAX // 4), st.floats(0, 1e9), st.integers(0, 1 << 40))
notes = st.lists(st.one_of(findings, saves), max_size=40)


class Watched:
    """A view of the page that has a reader look after every single store."""

    def __init__(self, view: Any, look: Any) -> None:
        self._view, self._look = view, look

    def __getitem__(self, at: Any) -> Any:
        return self._view[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._view[at] = value
        self._look()


def write(writer: NotesWriter, note: tuple[Any, ...]) -> None:
    if isinstance(note[0], str):
        writer.found(*note)
    else:
        writer.saved(*note)


def expected(written: list[tuple[Any, ...]]) -> tuple[list[FindingNote], list[CheckpointNote]]:
    found = [note for note in written if isinstance(note[0], str)]
    saved = [note for note in written if not isinstance(note[0], str)]
    return (
        [FindingNote(number, *note) for number, note in enumerate(found, start=1)],
        [CheckpointNote(number, *note) for number, note in enumerate(saved, start=1)],
    )


@given(notes)
def test_the_newest_notes_are_read_as_they_were_written(written: list[tuple[Any, ...]]) -> None:
    """After any writes the last ones of each ring are there, in order and unchanged."""
    view = memoryview(bytearray(PAGE_BYTES))
    writer, reader = NotesWriter(view), NotesReader(view)
    for note in written:
        write(writer, note)
    found, saved = expected(written)
    assert list(reader.findings()) == found[-FINDINGS_MAX:]
    assert list(reader.saves()) == saved[-SAVES_MAX:]
    assert not any(view[: 8 * 8]), "the sample's words are none of theirs"


@given(notes)
def test_no_reader_sees_half_a_note(written: list[tuple[Any, ...]]) -> None:
    """Whoever looks between any two stores sees only notes that were written, in order."""
    view = memoryview(bytearray(PAGE_BYTES))
    found, saved = expected(written)
    seen = 0

    def look() -> None:
        nonlocal seen
        reader = NotesReader(view)
        now = reader.findings(), reader.saves()
        assert all(one == found[one.number - 1] for one in now[0])
        assert all(one == saved[one.number - 1] for one in now[1])
        for ring in now:
            assert [one.number for one in ring] == sorted(one.number for one in ring)
        seen += 1

    writer = NotesWriter(view)
    writer._bytes = Watched(writer._bytes, look)  # type: ignore[assignment]
    writer._words = Watched(writer._words, look)  # type: ignore[assignment]
    writer._doubles = Watched(writer._doubles, look)  # type: ignore[assignment]
    for note in written:
        write(writer, note)
    assert seen >= 6 * len(written)
