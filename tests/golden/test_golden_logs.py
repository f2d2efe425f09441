"""Logs that older versions wrote are read, folded and verified by this one."""

import json
from pathlib import Path

import pytest
from reproduced import assert_reproduced

from ftcore.logs.archive import read_events
from ftcore.replay import Explainer, fold_log, read, verify
from ftcore.states.fold import fold
from ftcore.states.model import JobState, digest, to_json
from ftcore.states.snapshot import pack, restore, seal

LOGS = Path(__file__).parent / "logs"
FILES = sorted(LOGS.glob("*/*.ftlog"))

REAL_JOBS = ("sqlite_three_faults", "etcd_two_nodes", "torchrun_two_faults")
"""Logs of jobs that ran: on one machine, on two nodes with etcd, and under torchrun."""

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
def test_a_fold_may_go_on_from_a_snapshot_anywhere(path: Path):
    """Whoever restores the state after each event and folds the next one has the state of who folded from the start."""
    whole, hopping = JobState(), JobState()
    for event in read_events(path):
        fold(whole, event)
        fold(hopping, event)
        restored = restore(seal(pack(hopping)))
        assert restored is not None
        hopping = restored.state
        assert to_json(hopping) == to_json(whole), event.seq


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stored_log_is_explained(path: Path):
    """Its incidents can be told."""
    explainer = Explainer()
    read(read_events(path), explainer)
    assert all(incident.failures or incident.kind == "request" for incident in explainer.incidents())


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_if_with_the_chain_that_was_used_reproduces_a_stored_log(path: Path):
    """The same policies, durations and losses come out."""
    assert_reproduced(read_events(path))


def test_there_are_logs():
    """A wrong folder must not pass for success; every log has a digest and the other way round."""
    assert len(FILES) >= 9
    assert {path.stem for path in FILES} >= set(REAL_JOBS)
    for folder in {path.parent for path in FILES}:
        digests = json.loads((folder / "digests.json").read_text())
        assert set(digests) == {path.name for path in folder.glob("*.ftlog")}
