"""A storm of random faults on four hosts: what must never happen does not, and the job ends well."""

from pathlib import Path

import pytest
from fleet import fleet
from storm import FAULTS_A_DAY, HOSTS, Storm


@pytest.mark.longer
@pytest.mark.timeout(900)
def test_a_storm_is_survived(tmp_path: Path, longer: bool) -> None:
    """Ten kinds of faults in two minutes; those of a day in five, to which ``benchmarks/soak.py`` gives twenty."""
    seconds, faults, seed = (300.0, FAULTS_A_DAY, 1) if longer else (120.0, 11, 334)
    with fleet(tmp_path, HOSTS) as job:
        outcome = Storm(job, seconds, faults, seed).run()
        print(outcome)
    assert outcome.violations == []
    assert sum(outcome.faults.values()) == faults
    assert len(outcome.faults) >= 10
