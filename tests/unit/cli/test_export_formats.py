"""Formats of ``ftctl export`` from installed packages."""

import sys
from pathlib import Path

import pytest

from ftcore.cli.ftctl import main

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import install

FORMAT = """
from ftcore import ExportFormat

async def write(job, events, output):
    output.write(b"seq,type\\n")
    async for event in events:
        if fails and event.seq == 3:
            raise fails
        output.write(f"{event.seq},{event.type}\\n".encode())

fails = None
CSV = ExportFormat(write=write, name="a CSV file of events", begins=b"seq,type\\n")
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"ftcore.exporters": {"acme-csv": "acme_format:CSV", "odd": "acme_format:write"}}
    install(tmp_path / "site", "acme-format", "1.0", {"acme_format.py": FORMAT}, entries)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "acme_format", raising=False)


def test_a_format_of_a_package(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It gets every event; its file is overwritten, another kind of file is not."""
    out = tmp_path / "demo.csv"
    assert main(["--store", store, "export", "--format", "acme-csv", "-o", str(out)]) == 0
    lines = out.read_text().splitlines()
    assert (lines[0], lines[1]) == ("seq,type", "1,master.elected")
    assert capsys.readouterr().err == f"ftctl: wrote {len(lines) - 1} events of demo to {out}\n"
    assert main(["--store", store, "export", "--format", "acme-csv", "-o", str(out)]) == 0
    assert "the file of that name was overwritten" in capsys.readouterr().err
    other = tmp_path / "other"
    other.write_text("precious")
    assert main(["--store", store, "export", "--format", "acme-csv", "-o", str(other)]) == 2
    assert "is not a CSV file of events" in capsys.readouterr().err and other.read_text() == "precious"


def test_an_export_that_fails_leaves_the_old_file(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written atomically, whatever the format."""
    out = tmp_path / "demo.csv"
    assert main(["--store", store, "export", "--format", "acme-csv", "-o", str(out)]) == 0
    before = out.read_text()
    monkeypatch.setattr(sys.modules["acme_format"], "fails", KeyError("x"))
    with pytest.raises(KeyError):
        main(["--store", store, "export", "--format", "acme-csv", "-o", str(out)])
    assert out.read_text() == before and [path.name for path in tmp_path.glob(".demo*")] == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acme-cvs", "found 'acme-cvs'; did you mean acme-csv?"),
        ("odd", "acme_format:write is not of the type Export"),
    ],
)
def test_a_format_that_cannot_be_used(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    assert main(["--store", store, "export", "--format", name, "-o", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
