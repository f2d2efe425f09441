"""``ftrun`` is started as in ``tests/chaos/ftrun``."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[3] / "tests"
sys.path[:0] = [str(TESTS / "chaos" / "ftrun"), str(TESTS)]
