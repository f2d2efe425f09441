"""The reference pages say what the code says."""

import subprocess
import sys
from pathlib import Path

GENERATOR = Path(__file__).parents[3] / "docs" / "generate.py"


def test_the_committed_pages_are_those_of_the_code():
    """``docs/generate.py --check`` finds nothing stale; else run it without ``--check`` and read the difference."""
    done = subprocess.run([sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `python docs/generate.py`:\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
