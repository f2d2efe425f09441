"""torchrun's command line: every flag and every ``PET_`` variable of the installed torch is taken or refused."""

import argparse
import signal
from typing import Any

import pytest
from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

from ftcore.cli import ftrun_job, options
from ftcore.cli.torchrun_flags import FLAGS, Treatment
from ftcore.launch.policy_file import policy_in_force

THEIRS = [action for action in get_args_parser()._actions if action.option_strings and action.dest != "help"]
VALUES = {"nnodes": "1", "max_restarts": "3", "node_rank": "0", "shutdown_timeout": "7", "signals_to_handle": "SIGTERM"}


def parse(*words: str) -> argparse.Namespace:
    return options.build_parser().parse_args(list(words))


def test_every_flag_of_torchrun_is_in_the_table() -> None:
    """A flag that a newer torch has shows here, as does one that is gone."""
    assert {action.dest for action in THEIRS} == set(FLAGS)


@pytest.mark.parametrize("action", THEIRS, ids=lambda action: action.dest)
def test_a_flag_is_taken_or_refused_in_each_spelling(action: argparse.Action, capsys: Any) -> None:
    """As torchrun takes it, with or without a value; who is refused reads why."""
    value = [] if action.nargs == 0 else [VALUES.get(action.dest, "1")]
    for spelling in action.option_strings:
        if FLAGS[action.dest].treatment is Treatment.REFUSED:
            with pytest.raises(SystemExit) as end:
                parse(spelling, *value, "train.py")
            told = capsys.readouterr().err
            assert end.value.code == 2 and "is not supported: " in told and "--rdzv-backend ftcore" in told
        else:
            assert parse(spelling, *value, "train.py").script == "train.py"


@pytest.mark.parametrize("action", THEIRS, ids=lambda action: action.dest)
def test_a_variable_is_the_default(action: argparse.Action, monkeypatch: pytest.MonkeyPatch) -> None:
    """``PET_NAME`` where torchrun has it, and only there."""
    assert FLAGS[action.dest].variable == isinstance(action, env | check_env)
    if FLAGS[action.dest].variable:
        value = "1" if action.nargs == 0 else VALUES.get(action.dest, "1")
        monkeypatch.setenv(f"PET_{action.dest.upper()}", value)
        flag = [action.option_strings[0]] + ([] if action.nargs == 0 else [value])
        from_variable = getattr(parse("train.py"), action.dest)
        monkeypatch.delenv(f"PET_{action.dest.upper()}")
        assert from_variable == getattr(parse(*flag, "train.py"), action.dest)


@pytest.mark.parametrize(
    ("flag", "meant"),
    [("--nproc_per_nodes", "--nproc_per_node"), ("--nproc", "--nproc-per-node"), ("--tees=3", "--tee"), ("--zzz", "")],
)
def test_a_flag_that_does_not_exist(flag: str, meant: str, capsys: Any) -> None:
    """One message, with the flag that was probably meant."""
    with pytest.raises(SystemExit) as end:
        parse(flag, "2", "train.py")
    told = capsys.readouterr().err
    assert end.value.code == 2 and f"{flag.partition('=')[0]}: no such flag" in told
    assert (f"did you mean {meant}?" in told) if meant else ("did you mean" not in told)


def test_the_version(capsys: Any) -> None:
    """``ftrun --version`` names the program."""
    with pytest.raises(SystemExit) as end:
        parse("--version")
    assert end.value.code == 0 and capsys.readouterr().out.startswith("ftrun ")


@pytest.mark.parametrize("count", ["0", "-1"])
def test_no_workers(count: str, capsys: Any) -> None:
    """A node without workers is refused, plainly."""
    with pytest.raises(SystemExit):
        options.slots(options.build_parser(), count)
    assert f"found {count}; expected at least 1" in capsys.readouterr().err


def test_signals(capsys: Any) -> None:
    """By name; those that no process handles are refused."""
    parser = options.build_parser()
    assert options.signals(parser, "SIGUSR1, SIGTERM,SIGUSR1") == (signal.SIGUSR1, signal.SIGTERM)
    assert options.signals(parser, parse("x.py").signals_to_handle)[-1] == signal.SIGQUIT
    for wrong in ("SIGKILL", "TERM", "SIGTERM;SIGINT"):
        with pytest.raises(SystemExit):
            options.signals(parser, wrong)
        assert f"--signals-to-handle: found {wrong!r}" in capsys.readouterr().err


def test_filters() -> None:
    """Separated by commas; a double comma is a comma."""
    assert parse("--duplicate-stdout-filters", "a,b,,c", "x.py").duplicate_stdout_filters == ["a", "b,c"]


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_module_is_no_program(by: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """``--module`` with ``--no-python`` is refused, as by torchrun, however it was said."""
    if by == "variable":
        monkeypatch.setenv("PET_MODULE", "1")
        monkeypatch.setenv("PET_NO_PYTHON", "1")
    args = parse(*(("--module", "--no-python") if by == "flag" else ()), "x.sh")
    with pytest.raises(SystemExit):
        ftrun_job._spec(options.build_parser(), args)
    assert "--module and --no-python exclude each other" in capsys.readouterr().err


def test_a_role_is_a_role() -> None:
    """No word is taken away from ``--role``."""
    args = parse("--role", "master", "x.py")
    assert (args.role, args.leadership) == ("master", "auto")
    assert ftrun_job._spec(options.build_parser(), args).role == "master"


def test_the_shutdown_timeout_reaches_every_stop() -> None:
    """It is the grace of all policies and of the job itself; a wait for a node is never shorter."""
    parser = options.build_parser()
    loaded = policy_in_force(None, max_restarts=None, switches="", ranks=1, grace_s=77)
    graces = {entry.options["grace"] for entry in loaded.chain if "grace" in entry.options}
    others = {entry.options["grace"] for entry in loaded.chain if entry.policy == "hot_swap"}
    assert graces - others == {77} and others == {10}
    assert all(not 0 < entry.options.get("patience", 0) < 77 for entry in loaded.chain if entry.policy != "hot_swap")
    timing = ftrun_job._timing(parser, shutdown_timeout_s=400)
    timing.check()
    assert timing.stop_grace_s == 400
