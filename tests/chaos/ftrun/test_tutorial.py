"""The tutorials show what their commands print today."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("job", ["first", "broken", "nodes", "postmortem"])
def test_transcript_is_what_the_commands_print(job: str) -> None:
    """Run a job of a tutorial; after a change of a message, ``make transcript`` writes the pages."""
    done = subprocess.run(
        [sys.executable, "docs/transcript.py", "--check", job], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
