"""ftrun's command line: torchrun's words mean what they mean there."""

import subprocess
import sys

import pytest

from ftcore.cli import ftrun_job, master, options
from ftcore.errors import UsageError
from ftcore.launch.candidacy import Candidacy
from ftcore.launch.job import base_timing


def parse(*words: str):
    return options.build_parser().parse_args(list(words))


def test_what_follows_the_script_is_the_scripts():
    """Flags behind the script are not looked at, even if ftrun knows them."""
    args = parse("--nnodes", "2", "train.py", "--nnodes", "7", "-m", "--job=x")
    assert (args.nnodes, args.script, args.args) == ("2", "train.py", ["--nnodes", "7", "-m", "--job=x"])


@pytest.mark.parametrize("spelling", ["--nproc-per-node", "--nproc_per_node"])
def test_both_spellings_of_a_flag_work(spelling):
    """torchrun takes dashes and underscores."""
    assert parse(spelling, "4", "x.py").nproc_per_node == "4"


def test_variables_give_defaults_that_flags_override(monkeypatch):
    """``PET_NNODES`` is the default of ``--nnodes``; a switch is set by 1."""
    monkeypatch.setenv("PET_NNODES", "3")
    monkeypatch.setenv("PET_STANDALONE", "1")
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    args = parse("x.py")
    assert (args.nnodes, args.standalone, args.max_restarts) == ("3", True, 5)
    assert parse("--nnodes", "1", "x.py").nnodes == "1"


def test_a_variable_that_does_not_fit_is_told(monkeypatch, capsys):
    """``PET_MAX_RESTARTS=many`` names the variable."""
    monkeypatch.setenv("PET_MAX_RESTARTS", "many")
    with pytest.raises(SystemExit) as end:
        parse("x.py")
    assert end.value.code == 2
    assert "PET_MAX_RESTARTS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("3", 3), ("0:1,1:2", {0: 1, 1: 2}), ("1:3", {1: 3})]
)  # fmt: skip
def test_streams_are_read_as_torchrun_does(text, expected):
    """A number for all ranks, or pairs of rank and number."""
    assert options.stream_map(options.build_parser(), "--tee", text) == expected


@pytest.mark.parametrize("text", ["4", "x", "0:9", "0:1,", "1", ""])
def test_streams_that_are_none_are_told(text, capsys):
    """What is no stream is an error that names the flag; 1 is one."""
    if text == "1":
        assert options.stream_map(options.build_parser(), "--tee", text) == 1
        return
    with pytest.raises(SystemExit):
        options.stream_map(options.build_parser(), "--tee", text)
    assert f"--tee: found {text!r}" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "expected"), [("1", (1, 1)), ("2:4", (2, 4)), ("3:3", (3, 3))])
def test_numbers_of_nodes(text, expected):
    """One number, or a range."""
    assert options.node_range(options.build_parser(), text) == expected


@pytest.mark.parametrize("text", ["0", "4:2", "a", "1:", ":2", "-1", "1:2:3"])
def test_numbers_of_nodes_that_are_none(text, capsys):
    """Everything else is told with what is expected."""
    with pytest.raises(SystemExit):
        options.node_range(options.build_parser(), text)
    assert "MIN:MAX" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "flags", "rest"),
    [
        (["--job", "a", "--store=b", "--nnodes", "2", "x.py"], ["--nnodes", "2"], []),
        (["--nnodes", "2", "x.py", "--job", "mine"], ["--nnodes", "2"], ["--job", "mine"]),
        (["x.py", "--store=mine", "--", "y"], [], ["--store=mine", "--", "y"]),
        (["--nnodes", "2", "--", "x.py", "y"], ["--nnodes", "2"], ["y"]),
    ],
)
def test_an_agents_command_line_is_the_users(given, flags, rest):
    """Job, store and platform are those that were settled; what follows the script is not touched."""
    args = parse(*given)
    args.job, args.store = "j", "sqlite:///s"
    again = parse(*ftrun_job.agent_argv(args, given, "local:///p"))
    assert again.platform == "local:///p"
    assert (again.job, again.store, again.script, again.args) == ("j", "sqlite:///s", "x.py", rest)
    assert again.nnodes == (flags[1] if flags else None)


@pytest.mark.parametrize("text", ["[1]", "{", '{"node_lease_s": "x"}', '{"no_such": 1}', '{"node_lease_s": 0.1}'])
def test_time_constants_that_do_not_fit_are_told(text, monkeypatch):
    """``FTCORE_TIMING`` is checked like any input."""
    monkeypatch.setenv("FTCORE_TIMING", text)
    with pytest.raises(UsageError, match="FTCORE_TIMING"):
        base_timing()


def test_time_constants_of_the_environment(monkeypatch):
    """What it does not name keeps its default."""
    monkeypatch.setenv("FTCORE_TIMING", '{"master_idle_s": 4}')
    assert base_timing().master_idle_s == 4
    assert base_timing().node_lease_s == 2


def test_slots_without_a_gpu(monkeypatch):
    """``auto`` and ``cpu`` are the cores; CUDA_VISIBLE_DEVICES counts for ``auto`` and ``gpu``; torch is not asked."""
    parser = options.build_parser()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert options.slots(parser, "gpu") == options.slots(parser, "auto") == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert options.slots(parser, "auto") == options.slots(parser, "cpu")
    with pytest.raises(SystemExit):
        options.slots(parser, "gpu")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--nnodes 1:3 --node-unit 4", "--node-unit: found 4"),
        ("--nnodes 2:4 --node-sizes 2,8", "--node-sizes: found 8, which is outside of --nnodes 2:4"),
        ("--nnodes 2:8 --node-sizes 2,3 --node-unit 2", "--node-sizes: found 3, which is not a multiple"),
        ("--nnodes 2:8 --node-sizes 2,x", "--node-sizes: found '2,x'"),
        ("--node-labels switch", "--node-labels: found 'switch'"),
        ("--node-labels a=1,a=2", "--node-labels: found 'a=2'"),
        ("--nnodes 1:2 --join-window -1", "--join-window: found -1"),
        ("--nnodes 1:2 --join-window nan", "--join-window: found nan"),
        ("--max-restarts many", "ftrun: --max-restarts: found 'many'; expected a whole number"),
        ("--local-addr nosuch.invalid", "--local-addr: 'nosuch.invalid' does not resolve"),
        (
            "--local-nodes 3 --nnodes 2:8 --node-sizes 4,8",
            "--local-nodes: found 3; expected a permitted number",
        ),
        ("--micro-batch 8", "--micro-batch 8 has no meaning without --global-batch"),
        ("--batch-rule keep", "--batch-rule keep has no meaning without --global-batch"),
        ("--global-batch 0", "--global-batch: found a global batch of 0"),
        ("--global-batch 64 --micro-batch 12", "--micro-batch: found a micro-batch of 12; expected a divisor"),
        ("--global-batch 7 --nnodes 4 --nproc-per-node 2", "--global-batch: found 7 samples; expected at least one"),
        (
            "--global-batch 64 --batch-rule divide --nnodes 3 --nproc-per-node 2",
            "--batch-rule divide: no permitted number of nodes with 2 workers each takes equal parts of 64 samples",
        ),
    ],
)
def test_worlds_that_cannot_be_are_told(flags, words, tmp_path, monkeypatch, capsys):
    """Whatever contradicts itself ends ``ftrun`` with code 2 and one line, before anything starts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(
        ftrun_job, "configure", lambda _level: None
    )  # it would keep this test's stderr for all that follow
    given = [*flags.split(), "x.py"]
    try:
        code = ftrun_job.main(options.build_parser(), parse(*given), given, None)
    except SystemExit as end:
        code = end.code
    assert code == 2
    told = capsys.readouterr().err
    assert words in told and len(told.splitlines()) <= 2


def test_labels_and_sizes_are_read():
    """Names with values, and numbers with the smallest first."""
    parser = options.build_parser()
    assert options.node_labels(parser, "switch=s1, rack=r=2") == {"switch": "s1", "rack": "r=2"}
    assert options.node_sizes(parser, "8,2,4,2") == (2, 4, 8)
    assert (options.node_labels(parser, None), options.node_sizes(parser, "")) == ({}, ())


def test_worlds_that_divide_the_batch_are_permitted_sizes(tmp_path, monkeypatch):
    """Of those that the other flags permit; the other rules permit as many nodes as without a batch."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    common = ("--nnodes", "1:12", "--node-unit", "2", "--nproc-per-node", "2", "--global-batch", "96")
    parser = options.build_parser()
    sizes = {}
    for more in (("--micro-batch", "4", "--batch-rule", "divide"), ("--batch-rule", "divide"), ()):
        args = parse(*common, *more, "x.py")
        spec = ftrun_job._spec(parser, args)
        assert spec.batch is not None and spec.batch.size == 96
        sizes[more] = spec.sizes
    assert list(sizes.values()) == [(2, 4, 6, 12), (2, 4, 6, 8, 12), ()]


def test_a_node_that_only_leads_hands_on_its_platform(tmp_path, monkeypatch):
    """Its master launches nodes, as that of any other node does."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    args = parse("--leadership", "only", "x.py")
    args.job, args.store, args.platform = "j", f"sqlite://{tmp_path}", "local:"
    candidacy = ftrun_job._config(options.build_parser(), args).candidacy
    assert candidacy.argv()[candidacy.argv().index("--platform") + 1] == "local:"


def test_a_platform_is_told_how_to_start_a_node(tmp_path, monkeypatch):
    """Flags of this node alone are left out, however they are written; the script's own stay."""
    given = ["--node_rank", "0", "--nnodes=2", "--node-id=a", "--local-addr", "h", "x.py", "--node-rank", "7"]
    args = parse(*given)
    args.job, args.store, args.platform = "j", "etcd://e:2379", "acme:"
    expected = ("ftrun", "--nnodes=2", "--job", "j", "--store", "etcd://e:2379", "--platform", "acme:", *given[6:])
    assert ftrun_job.node_argv(args, given) == expected
    candidacy = Candidacy(store=args.store, job="j", keep_events=1, snapshot_events=1, node_argv=expected)
    seen = []
    monkeypatch.setattr(master.master, "run", lambda started: seen.append(started) or 0)
    assert master.main(candidacy.argv()[3:]) == 0
    assert [found.node_argv for found in seen] == [expected]


def test_an_internal_error_leaves_a_traceback():
    """The exit code alone would say nothing."""
    code = "from ftcore.cli import ftrun_job as job; job.main = lambda *_: 1 / 0; job.run(None, None, [], None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
