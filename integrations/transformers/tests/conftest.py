"""The harness of ``tests/chaos/ftrun`` is these tests' too."""

import sys
from pathlib import Path

CHAOS = Path(__file__).parents[3] / "tests" / "chaos"
sys.path[:0] = [str(CHAOS / "ftrun"), str(CHAOS.parent)]
