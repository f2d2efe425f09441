"""A storm of random faults on four hosts: what must never happen does not, and the job ends well."""

from pathlib import Path

import pytest
from fleet import fleet
from storm import FAULTS_A_DAY, HOSTS, Storm


@pytest.mark.timeout(900)
def test_a_storm_is_survived(tmp_path: Path) -> None:
    """The faults of a day in five minutes; ``benchmarks/soak.py`` gives it twenty."""
    with fleet(tmp_path, HOSTS) as job:
        outcome = Storm(job, 300.0, FAULTS_A_DAY, seed=1).run()
        print(outcome)
    assert outcome.violations == []
    assert sum(outcome.faults.values()) == FAULTS_A_DAY
