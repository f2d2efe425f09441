"""The option that rewrites recorded transcripts."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what was observed into the scenario files")
