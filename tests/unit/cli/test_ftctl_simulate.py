"""``ftctl simulate`` and ``ftctl whatif``: what they print, what they write, and what they say to wrong input."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ftcore.cli.ftctl import main
from ftcore.replay.spans import PRODUCTIVE, USES
from ftcore.sim.campaign.simulate import expected_ettr

SMALL = ["simulate", "--nodes", "8", "--days", "20", "--seed", "7", "--profile", "opt175b"]


def test_json_has_the_contracts_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON: goodput, lost by cause, incidents, policies, seed and violations; one object alone on stdout."""
    assert main([*SMALL, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert 0 < said["goodput"] < 1
    assert said["seed"] == 7
    assert said["violations"] == []
    assert set(said["lost"]) == set(USES) - {PRODUCTIVE}
    assert sum(said["lost"].values()) + said["productive"] == pytest.approx(8 * 20 * 86400)
    assert len(said["incidents"]) >= said["fault_count"] > 0
    assert {"id", "class", "day", "seconds", "resolved_by", "policies_taken", "steps_lost"} <= set(said["incidents"][0])
    assert all(set(fared) == {"taken", "resolved", "continued", "escalated"} for fared in said["by_policy"].values())
    assert said["costs"]["replace"] == {"seconds": 3600.0, "source": "opt175b"}


def test_one_rate_is_the_closed_form(capsys: pytest.CaptureFixture[str]) -> None:
    """With one rate and one cost of a restart, several seeds come close to the closed form and tell how close."""
    given = ["--rate", "0.25", "--restart", "300", "--ckpt-interval", "1800", "--ckpt-cost", "20", "--seeds", "4"]
    assert main(["simulate", "--nodes", "4", "--days", "100", *given, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    expected = expected_ettr(nodes=4, rate=0.25, restart_s=300, ckpt_interval_s=1800, ckpt_cost_s=20)
    assert said["goodput"] == pytest.approx(expected, rel=0.01)
    assert [run["seed"] for run in said["seeds"]] == [0, 1, 2, 3]
    assert said["interval95"][0] < said["goodput"] < said["interval95"][1]


def test_people_see_causes_incidents_and_policies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without --format there are tables, and the plot is an SVG that names every cause."""
    picture = tmp_path / "plot.svg"
    assert main([*SMALL, "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "goodput" in out
    assert "Results of the policies" in out
    texts = [element.text or "" for element in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("recompute ") for text in texts)
    assert any("8 nodes, 20 days, profile opt175b, seed 7" in text for text in texts)


def test_a_kept_log_is_read_like_any_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--log keeps an archive that verifies, and on which another policy can be priced."""
    log, policy = tmp_path / "sim.ftlog", tmp_path / "other.yaml"
    policy.write_text("version: 1\nchain:\n  - stop\n")
    assert main(["simulate", "--nodes", "8", "--days", "20", "--rate", "0.05", "--log", str(log)]) == 0
    assert main(["--store", f"file:{log}", "replay", "--verify"]) == 0
    capsys.readouterr()
    assert main(["--store", f"file:{log}", "status", "--format", "json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["step"] >= status["checkpoint"] > 0
    assert main(["--store", f"file:{log}", "whatif", "--policy", str(policy), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["recorded_source"] == "default"
    assert said["totals"]["other"]["total"] > said["totals"]["recorded"]["total"] > 0
    one = said["incidents"][0]
    assert one["recorded"]["source"]
    assert one["other"]["source"]
    assert main(["--store", f"file:{log}", "whatif", "--policy", str(policy), "--profile", "opt175b"]) == 0
    assert "total loss: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--days", "0"], "ftctl: --days: found 0; expected more than 0"),
        (["--days", "-3"], "--days: found -3"),
        (["--days", "nan"], "--days: found nan"),
        (["--days", "x"], "--days: found 'x'; expected a number (see"),
        (["--nodes", "0"], "--nodes: found 0; expected 1 to"),
        (["--nodes", "1.5"], "--nodes: found '1.5'; expected a whole number"),
        (["--profile", "lama3"], "unknown profile 'lama3'; did you mean 'llama3'?"),
        (["--rate", "-1"], "--rate: found -1"),
        (["--rate", "9e5"], "at most 2,000,000 can be simulated"),
        (
            ["--rate", "1", "--restart", "-5"],
            "--restart: found '-5'; expected a duration such as 300, 90s, 5m or 1h30m",
        ),
        (["--ckpt-interval", "0"], "--ckpt-interval: found 0"),
        (["--ckpt-interval", "-1"], "--ckpt-interval: found '-1'; expected a duration"),
        (["--seeds", "0"], "--seeds: found 0"),
        (["--nodes-min", "9"], "--nodes-min: found 9; expected 1 to 4"),
        (["--trace", "/nowhere/trace.tsv"], "cannot read /nowhere/trace.tsv: No such file"),
        (["--policy", "/nowhere/policy.yaml"], "cannot read /nowhere/policy.yaml"),
        (["--plot", "/nowhere/plot.svg"], "cannot write /nowhere/plot.svg"),
        (["--log", "/nowhere/sim.ftlog"], "/nowhere"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(args: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be simulated is told in one line before anything is."""
    given = {"--nodes": "4", "--days": "1"} | dict(zip(args[::2], args[1::2], strict=True))
    words = [word for pair in given.items() for word in pair]
    try:
        code = main(["simulate", *words])
    except SystemExit as stopped:  # the parser's way
        code = stopped.code
    assert code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert said.err.count("\n") == 1


def test_a_trace_goes_with_no_profile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A trace says all of what goes wrong; one that names a node that the job has not is refused."""
    trace = tmp_path / "trace.tsv"
    trace.write_text("seconds\tnode\tkind\n3600\t5\tkilled\n")
    given = ["simulate", "--nodes", "4", "--days", "1", "--trace", str(trace)]
    assert main(given) == 2
    assert f"{trace}: line 2: names node 5; the job has the nodes 0 to 3" in capsys.readouterr().err
    assert main([*given, "--profile", "ant"]) == 2
    assert "cannot be combined with a profile or a rate" in capsys.readouterr().err
    trace.write_text("seconds\tnode\tkind\n40000\t3\tkilled\n")
    assert main([*given, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["fault_count"], said["hints"]) == (1, [])
    trace.write_text("seconds\tnode\tkind\n40000\t3\tkilled\n86401\t0\tkilled\n")
    assert main(given) == 0
    out = capsys.readouterr().out
    assert "\n1 fault, 1 incident\n" in out
    assert "trace.tsv: 1 of 2 faults left out, because they come after day 1" in out
    assert "4 nodes, 1 day, " in out


def test_an_entry_that_gives_up_before_a_node_can_come_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A chain whose patience is below what the profile says a node takes fails, and is said to."""
    assert main([*SMALL, "--format", "json"]) == 0
    [hint] = json.loads(capsys.readouterr().out)["hints"]
    assert hint.startswith("pod_replacement failed ")
    assert hint.endswith("its patience of 1800 s is shorter than the 3600 s of a node replacement (opt175b)")


def test_durations_are_those_of_policy_files(capsys: pytest.CaptureFixture[str]) -> None:
    """A unit or none: 5m is 300."""
    said = []
    for restart, interval, cost in (("300", "1800", "20"), ("5m", "0.5h", "20s")):
        given = ["--rate", "0.25", "--restart", restart, "--ckpt-interval", interval, "--ckpt-cost", cost]
        assert main(["simulate", "--nodes", "4", "--days", "10", *given, "--format", "json"]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1]


def test_several_seeds_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """The mean is that of all seeds; the tables are of the first, and say so."""
    assert main(["simulate", "--nodes", "4", "--days", "10", "--rate", "0.2", "--seed", "3", "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("2 seeds, 3 to 4: mean goodput ")
    assert lines[3] == "the following results are of seed 3 only"


def test_whatif_needs_incidents(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A log without incidents has nothing to compare."""
    log, policy = tmp_path / "calm.ftlog", tmp_path / "other.yaml"
    policy.write_text("version: 1\nchain:\n  - stop\n")
    assert main(["simulate", "--nodes", "2", "--days", "1", "--rate", "0", "--log", str(log)]) == 0
    assert main(["--store", f"file:{log}", "whatif", "--policy", str(policy)]) == 2
    assert "no incident that ended" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["palm", "falcon"])
def test_a_preset_goes_back_and_skips_only_if_the_script_is_able_to(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A simulation and the pricing of a log believe what the file declares or the user assumes, and nothing else."""
    log, policy, trace = tmp_path / "sim.ftlog", tmp_path / "policy.yaml", tmp_path / "trace.tsv"
    assert main(["policy", "init", "--preset", name]) == 0
    policy.write_text(capsys.readouterr().out)
    trace.write_text("seconds\tnode\tkind\n40000\t1\tloss-spike\n")
    given = ["simulate", "--nodes", "2", "--days", "1", "--trace", str(trace), "--format", "json"]
    able = ["--assume", "rollback,skip"]

    def simulated(*more: str) -> str:
        assert main([*given, "--policy", str(policy), *more]) == 0
        [incident] = json.loads(capsys.readouterr().out)["incidents"]
        return str(incident["resolved_by"])

    assert main([*given, "--log", str(log)]) == 0
    capsys.readouterr()

    def priced(*more: str) -> str:
        assert main(["--store", f"file:{log}", "whatif", "--policy", str(policy), "--format", "json", *more]) == 0
        [compared] = json.loads(capsys.readouterr().out)["incidents"]
        return str(compared["other"]["chances"][:1])

    assert simulated() != "rollback_and_skip"
    assert "rollback_and_skip" not in priced()
    assert (simulated(*able), priced(*able)) == (
        "rollback_and_skip",
        "[{'policy': 'rollback_and_skip', 'chance': 1.0}]",
    )
    declared = policy.read_text().replace("version: 1\n", "version: 1\njob: {abilities: [rollback, skip]}\n")
    policy.write_text(declared)
    assert (simulated(), priced()) == ("rollback_and_skip", "[{'policy': 'rollback_and_skip', 'chance': 1.0}]")


def test_the_file_of_the_default_chain_changes_no_goodput(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """``policy init`` writes the chain that is in force without a file: what it names cannot do more for that."""
    policy = tmp_path / "policy.yaml"
    assert main(["policy", "init"]) == 0
    policy.write_text(capsys.readouterr().out)
    given = ["simulate", "--nodes", "8", "--days", "1", "--seed", "1", "--rate", "1", "--format", "json"]
    told = []
    for more in ([], ["--policy", str(policy)]):
        assert main([*given, *more]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0]["goodput"] == told[1]["goodput"] < 0.9
    assert told[0]["by_policy"] == told[1]["by_policy"]
    assert any("hot_swap" in hint and "--assume" in hint for hint in told[1]["hints"])


def test_every_output_made_with_an_assumption_says_so_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In text, JSON, plot and exported log, of every command that takes ``--assume``; without it no word of it."""
    policy, log, picture = tmp_path / "policy.yaml", tmp_path / "sim.ftlog", tmp_path / "p.svg"
    policy.write_text("version: 1\njob: {replicas: all}\nchain: [hot_swap: {optional: true}, process_restart, stop]\n")
    simulate = ["simulate", "--nodes", "4", "--days", "1", "--rate", "2", "--policy", str(policy)]
    files = ["--log", str(log), "--plot", str(picture)]
    commands = [
        [*simulate, *files],
        ["--store", f"file:{log}", "whatif", "--policy", str(policy)],
        ["policy", "check", str(policy)],
        ["policy", "explain", str(policy), "--fault", "node-lost"],
    ]

    def first(*argv: str) -> str:
        assert main([*argv]) == 0
        return capsys.readouterr().out.splitlines()[0]

    for command in commands:
        assert "assumed" not in first(*command) + first(*command, "--format", "json")
    assert "assumed" not in log.read_text() + picture.read_text()
    for command in commands:
        told = first(*command, "--assume", "park")
        assert told == "assumed, not declared by any job: park"
        assert first(*command, "--assume", "park", "--format", "json").startswith('{"assumed":["park"]')
    assert "assumed, not declared by any job: park" in log.read_text().splitlines()[0]
    assert "assumed, not declared by any job: park" in picture.read_text().splitlines()[0]
    assert main(["--store", f"file:{log}", "status", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["abilities"]["assumed"] == ["park"]


def test_an_ability_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest one that does."""
    assert main(["simulate", "--nodes", "2", "--days", "1", "--assume", "parc"]) == 2
    assert "--assume: unknown ability 'parc'; did you mean 'park'?" in capsys.readouterr().err


def test_a_victim_that_is_seen_first_is_no_failed_restart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What-if with ``process_restart`` predicts what the recorded chain did with it: a restart, in the same time."""
    policy = tmp_path / "other.yaml"
    policy.write_text("version: 1\nchain: [process_restart, stop]\n")
    log = Path(__file__).parents[2] / "golden" / "logs" / "0.1.0" / "kill_raise_segfault_lose.ftlog"
    assert main(["--store", f"file:{log}", "whatif", "--policy", str(policy), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["incidents"]
    assert told[0]["other"]["chances"] == [{"policy": "process_restart", "chance": 1.0}]
    assert [one["other"]["seconds"] for one in told] == [one["recorded"]["seconds"] for one in told]
