"""What ftcore's own processes say on stderr."""

import sys

import structlog

from ftcore.runtime.logging import configure


def test_a_warning_reads_as_the_story_does(capsys):
    """Where people look: one line in the words of the job's story, without columns; details behind it."""
    try:
        configure("warning")
        logger = structlog.get_logger().bind()
        logger.info("not told")
        logger.warning("no such node runs", node="n1", at=3)
        logger.error("it ended")
    finally:
        structlog.reset_defaults()
    told = capsys.readouterr().err
    assert told == "ftcore: warning: no such node runs (node: n1, at: 3)\nftcore: error: it ended\n"


def test_a_file_of_messages_has_the_time(capsys):
    """A master's stderr is a file that is read later."""
    try:
        configure("warning", to_file=True)
        structlog.get_logger().bind().warning("fenced", term=2)
    finally:
        structlog.reset_defaults()
    told = capsys.readouterr().err
    assert told[2] == ":" and "[warning" in told and "term=2" in told


def test_a_log_on_a_full_disk_fails_nobody(monkeypatch):
    """A master whose log file cannot be written, or is closed, leads on."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        try:
            configure("info", to_file=True)
            structlog.get_logger().bind().error("no space is left")
            full.buffer.raw.close()
            structlog.get_logger().bind().error("and the file is closed")
        finally:
            structlog.reset_defaults()
