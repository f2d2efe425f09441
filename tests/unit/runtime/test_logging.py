"""Log lines of ftcore's own processes on stderr."""

import json
import sys
from pathlib import Path

import structlog

from ftcore.runtime.log_context import describe
from ftcore.runtime.log_format import FORMAT_ENV
from ftcore.runtime.logging import configure


def test_a_warning_has_the_format_of_the_narration(capsys):
    """On a console: one line in the format of the narration, without columns; details at its end."""
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


def test_a_log_file_on_a_full_disk_is_no_error(monkeypatch):
    """A master whose log file is full or closed keeps leading."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        try:
            configure("info", to_file=True)
            structlog.get_logger().bind().error("no space is left")
            full.buffer.raw.close()
            structlog.get_logger().bind().error("and the file is closed")
        finally:
            structlog.reset_defaults()


def test_json_lines_carry_the_place_in_the_job(capsys, monkeypatch):
    """Each line is an object with job, node, round and incident, as far as they are known; a line's own fields win."""
    monkeypatch.setenv(FORMAT_ENV, "json")
    try:
        configure("warning", to_file=True)
        describe(job="demo", node="n1", round=0, incident=None)
        structlog.get_logger().bind().warning("first", node="n2", at=Path("/x"))
        describe(round=3, incident="i2")
        try:
            raise KeyError("no such thing")
        except KeyError:
            structlog.get_logger().bind().exception("second")
        describe(incident="")
        structlog.get_logger().bind().error("third")
    finally:
        structlog.reset_defaults()
        describe(job=None, node=None, round=None)
    first, second, third = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {"job": "demo", "node": "n2", "round": 0, "level": "warning", "event": "first", "at": "/x"}
    assert (second["round"], second["incident"]) == (3, "i2")
    assert second["exception"].endswith("KeyError: 'no such thing'")
    assert "incident" not in third and third["node"] == "n1"
