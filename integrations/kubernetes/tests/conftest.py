"""The test server is a package beside the tests."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[3] / "tests"
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "chaos" / "ftrun"), str(TESTS)]
