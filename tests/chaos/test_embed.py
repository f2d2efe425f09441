"""Another launcher embeds ftcore."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "embed" / "launcher.py"


def test_a_launcher_with_its_own_processes_recovers_through_ftcore() -> None:
    """The example's failing worker is restarted by ftcore's decision, through the example's own supervisor."""
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "worker 1 of 2, attempt 1" in done.stdout
    for expected in ("worker.failed", "incident.opened", "policy.considered", "job.finished", "the job succeeded"):
        assert expected in done.stdout
