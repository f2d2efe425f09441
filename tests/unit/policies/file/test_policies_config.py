"""The policy file: what is accepted, and the one message for everything else."""

import pytest

from ftcore.errors import UsageError
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.file.config import default_chain, parse, with_max_restarts
from ftcore.policies.file.job_options import HEALTH
from ftcore.policies.options import filled
from ftcore.states.health import MODES

GOOD = """\
version: 1
chain:
  - process_restart:
      max_restarts: 3
      window: 1h
      backoff: 500ms
      grace: 2.5s
  - stop
"""


def test_a_file_sets_what_it_names_and_defaults_the_rest():
    """Durations come in seconds whatever their unit; options that are not named have their default."""
    loaded = parse(GOOD, "p.yaml")
    assert [entry.policy for entry in loaded.chain] == ["process_restart", "stop"]
    options = loaded.chain[0].options
    assert (options["max_restarts"], options["window"], options["backoff"], options["grace"]) == (3, 3600, 0.5, 2.5)
    assert options["backoff_max"] == BUILT_IN["process_restart"].options().backoff_max
    assert (loaded.source, loaded.text) == ("p.yaml", GOOD)


def test_a_file_with_a_version_alone_is_the_default():
    """Without a chain the default one is in force."""
    assert parse("version: 1\n", "p.yaml").chain == default_chain().chain


@pytest.mark.parametrize(
    "text", ["version: 1\nchain: [stop]", "version: 1\nchain:\n- stop:\n", "version: 1\nchain: [{stop: ~}]"]
)
def test_a_policy_without_options(text):
    """A policy may stand alone, with nothing behind its colon, or with null."""
    assert [entry.policy for entry in parse(text, "p").chain] == ["stop"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p: is empty; expected at least: version: 1"),
        ("version: [", "p, line 1: not YAML: expected the node content, but found '<stream end>'"),
        ("- a\n", "p, line 1: the file: found a list; expected `key: value` lines"),
        ("chain: [stop]\n", "p, line 1: version is missing; expected version: 1"),
        ("version: 2\n", "p, line 1: version: found 2; this ftcore reads version: 1"),
        ("version: [1]\n", "p, line 1: version: found a list; this ftcore reads version: 1"),
        ("version: 1\nversion: 1\n", "p, line 2: version is set twice, first in line 1"),
        ("version: 1\nchains: []\n", "p, line 2: the file: unknown key 'chains'; did you mean 'chain'?"),
        (
            "version: 1\nxyz: 1\n",
            "p, line 2: the file: unknown key 'xyz'; expected one of: version, preset, job, faults, options, chain",
        ),
        (
            "version: 1\nchain: stop\n",
            "p, line 2: chain: expected a list of policies, highest priority first",
        ),
        ("version: 1\nchain: []\n", "p, line 2: chain: expected a list of policies, highest priority first"),
        (
            "version: 1\nchain:\n  - [stop]\n",
            "p, line 3: chain: expected `- policy` or `- policy: {option: value}`, one policy to an entry",
        ),
        (
            "version: 1\nchain:\n  - proces_restart\n  - stop\n",
            "p, line 3: chain: unknown policy 'proces_restart'; did you mean 'process_restart'?",
        ),
        (
            "version: 1\nchain:\n  - reboot\n",
            f"p, line 3: chain: unknown policy 'reboot'; expected one of: {', '.join(BUILT_IN)}",
        ),
        (
            "version: 1\nchain:\n  - stop\n  - process_restart\n",
            "p, line 4: chain: process_restart is never asked: `stop` above it takes every fault",
        ),
        (
            "version: 1\nchain:\n  - process_restart\n  - process_restart\n  - stop\n",
            "p, line 4: chain: process_restart occurs twice; each policy is asked once",
        ),
        (
            "version: 1\nchain:\n  - process_restart\n",
            "p, line 3: chain: the last policy must be `stop`, for all faults, so that every incident is resolved",
        ),
        (
            "version: 1\nchain:\n  - process_restart:\n      max_restart: 3\n  - stop\n",
            "p, line 4: process_restart: unknown key 'max_restart'; did you mean 'max_restarts'?",
        ),
        (
            "version: 1\nchain:\n  - process_restart: 3\n  - stop\n",
            "p, line 3: process_restart: found 3; expected `key: value` lines",
        ),
        (
            "version: 1\nchain:\n  - process_restart: {max_restarts: many}\n  - stop\n",
            "p, line 3: process_restart: max_restarts: found 'many'; expected a whole number",
        ),
        (
            "version: 1\nchain:\n  - process_restart: {max_restarts: true}\n  - stop\n",
            "p, line 3: process_restart: max_restarts: found true; expected a whole number",
        ),
        (
            "version: 1\nchain:\n  - process_restart: {max_restarts: 1001}\n  - stop\n",
            "p, line 3: process_restart: max_restarts: found 1001; expected at least 0 and at most 1000",
        ),
        (
            "version: 1\nchain:\n  - process_restart: {window: 0}\n  - stop\n",
            "p, line 3: process_restart: window: found 0; expected at least 1s",
        ),
        (
            "version: 1\nchain:\n  - stop: {grace: soon}\n",
            "p, line 3: stop: grace: found 'soon'; expected a duration such as 30, 90s, 5m or 1h30m",
        ),
        (
            "version: 1\nchain:\n  - process_restart: {backoff: 5m, backoff_max: 60s}\n  - stop\n",
            "p, line 3: process_restart: backoff_max (1m) is below backoff (5m)",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(text, message):
    """One line: file, line, key, what was found, what was expected."""
    with pytest.raises(UsageError) as caught:
        parse(text, "p")
    assert str(caught.value) == message


def test_the_command_line_wins_over_the_file():
    """``--max-restarts`` changes the budget, says so, and is refused where it would mean nothing."""
    loaded = with_max_restarts(parse(GOOD, "p.yaml"), 7)
    assert loaded.chain[0].options["max_restarts"] == 7
    assert loaded.source == "p.yaml with --max-restarts 7"
    with pytest.raises(UsageError, match=r"--max-restarts has no effect: the chain of p has no process_restart"):
        with_max_restarts(parse("version: 1\nchain: [stop]", "p"), 7)


def test_an_entry_of_another_version_is_read_as_its_record():
    """What its log did not know has its default, what this version does not know is left out."""
    record = filled(BUILT_IN["process_restart"].options, {"max_restarts": 5000, "of_the_future": 1})
    assert (record.max_restarts, record.window) == (5000, 3600.0)
    assert not hasattr(record, "of_the_future")


def test_the_modes_of_health_checks_are_those_of_the_fold():
    """One list for the file, one for the state."""
    assert HEALTH["health"].choices == MODES
