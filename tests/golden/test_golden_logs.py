"""Logs that older versions wrote are read, folded and verified by this one."""

import json
from pathlib import Path

import pytest

from ftcore.logs.archive import read_events
from ftcore.replay import Explainer, fold_log, read, verify
from ftcore.states.model import digest

LOGS = Path(__file__).parent / "logs"
FILES = sorted(LOGS.glob("*/*.ftlog"))

RULES_CHANGED: dict[str, str] = {}
"""Versions whose logs are folded but not decided again, with the reason."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stored_log_folds_to_the_digest_of_then(path: Path):
    """The state is the same to the byte."""
    expected = json.loads((path.parent / "digests.json").read_text())[path.name]
    assert expected == digest(fold_log(read_events(path)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stored_log_is_decided_again_as_then(path: Path):
    """Every decision is made again, unless the rules were changed on purpose since."""
    if path.parent.name in RULES_CHANGED:
        pytest.skip(RULES_CHANGED[path.parent.name])
    report = verify(read_events(path))
    assert report.ok, "\n".join(map(str, report.mismatches))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stored_log_is_explained(path: Path):
    """Its incidents can be told."""
    explainer = Explainer()
    read(read_events(path), explainer)
    assert all(incident.failures or incident.kind == "request" for incident in explainer.incidents())


def test_there_are_logs():
    """A wrong folder must not pass for success; every log has a digest and the other way round."""
    assert len(FILES) >= 6
    for folder in {path.parent for path in FILES}:
        digests = json.loads((folder / "digests.json").read_text())
        assert set(digests) == {path.name for path in folder.glob("*.ftlog")}
