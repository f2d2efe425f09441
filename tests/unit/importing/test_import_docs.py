"""The commands of ``docs/how-to/try-on-yesterdays-job.md``, in order, on a real job's files."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from imported import DATA

from ftcore.cli.ftctl import main

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "try-on-yesterdays-job.md"


def test_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each one succeeds; the page's policy file is the one that it names."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "restart", tmp_path / "yesterday")
    text = PAGE.read_text()
    (policy,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "policy.yaml").write_text(policy)
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    assert len(lines) == 7
    for line in lines:
        program, *argv = shlex.split(line)
        assert program == "ftctl"
        assert main(argv) == 0, line
    printed = capsys.readouterr().out
    assert "ValueError: sample 7 is <b>empty</b>" in printed
    assert (tmp_path / "job.html").read_text().startswith("<!")
    assert "restart" in printed
