"""Tables on narrow terminals: what names a thing, its state and its times are never cut."""

import json
import re
from pathlib import Path

from ftcore.cli import ctl_output
from ftcore.cli.ctl_output import console, table
from ftcore.cli.ftctl import main
from ftcore.wording import format_elapsed

POLICY = "version: 1\nchain:\n  - process_restart\n  - stop\n"


def printed(capsys, rows) -> list[str]:
    console().print(rows)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def several():
    rows = table("ID", "KIND", "TOTAL", "WHAT", right=("TOTAL",), flexible=("WHAT",), spare=("KIND",))
    rows.add_row("i1", "opportunity", "1h02m47s", "rank 12 on node1 was ended by SIGKILL")
    rows.add_row("i12", "fault", "-", "x")
    return rows


def test_with_room_every_row_is_a_line(capsys, monkeypatch):
    """Nothing is folded, and nothing left out."""
    monkeypatch.setattr(ctl_output, "columns", lambda: 80)
    assert printed(capsys, several()) == [
        "ID   KIND            TOTAL  WHAT",
        "i1   opportunity  1h02m47s  rank 12 on node1 was ended by SIGKILL",
        "i12  fault               -  x",
    ]


def test_without_room_text_is_folded_first(capsys, monkeypatch):
    """Then the columns that can be spared are left out, and named; the others stay whole, whatever the width."""
    monkeypatch.setattr(ctl_output, "columns", lambda: 50)
    lines = printed(capsys, several())
    assert lines[1:3] == ["i1   opportunity  1h02m47s  rank 12 on node1 was", " " * 28 + "ended by SIGKILL"]
    for width in (40, 20):
        monkeypatch.setattr(ctl_output, "columns", lambda width=width: width)
        lines = printed(capsys, several())
        assert lines[1].startswith("i1   1h02m47s  rank 12 on node1")
        assert "i12         -  x" in lines
        assert "(no room for KIND;" in "\n".join(lines)


def test_one_time_is_told_in_one_way():
    """Sums of the same parts in another order are told alike; a unit is never told as full of the one below."""
    assert (
        format_elapsed(1126.5) == format_elapsed(1126.4999999999998) == format_elapsed(1126.5000000000002) == "18m47s"
    )
    assert [format_elapsed(value) for value in (0.9996, 119.96, 3599.6)] == ["1.0 s", "2m00s", "1h00m00s"]


def test_incidents_and_prices_on_80_columns(capsys, monkeypatch, tmp_path: Path):
    """Of every incident of a long log the id, the state and the times stand there in full."""
    log, policy = tmp_path / "sim.ftlog", tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    given = ["--nodes", "8", "--days", "60", "--rate", "0.3", "--profile", "opt175b", "--log", str(log)]
    assert main(["simulate", *given, "--format", "json"]) == 0
    capsys.readouterr()
    told = {}
    for argv in (["incidents"], ["whatif", "--policy", str(policy)]):
        assert main(["--store", f"file:{log}", *argv, "--format", "json"]) == 0
        told[argv[0]] = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(ctl_output, "columns", lambda: 80)
    lines = shown(capsys, log, "incidents")
    for one in told["incidents"]:
        opened = one["opened"][:19].replace("T", " ")
        outcome = one["resolved_by"] or "dropped|exhausted|acting|open"
        [line] = [line for line in lines if re.match(rf"{one['id']} +{opened}  ({outcome}) ", line)]
        lost = "-" if one["steps_lost"] is None else one["steps_lost"]
        assert re.search(rf" {format_elapsed(one['phases']['total'])} +{lost}  ", line)
    assert lines[0].split() == ["ID", "OPENED", "(UTC)", "OUTCOME", "TOTAL", "LOST", "WHAT"]
    lines = shown(capsys, log, "whatif", "--policy", str(policy))
    for one in told["whatif"]["incidents"]:
        [line] = [line for line in lines if line.startswith(f"{one['id']} ")]
        assert (
            f" {format_elapsed(one['recorded']['seconds'])} " in line
            and f" {format_elapsed(one['other']['seconds'])}" in line
        )


def shown(capsys, log: Path, *argv: str) -> list[str]:
    assert main(["--store", f"file:{log}", *argv]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    return lines


def test_what_a_job_is_not_able_to_do_takes_one_row(capsys):
    """``explain`` names the policies together with all that they lack, however many they are."""
    log = Path(__file__).parents[2] / "golden" / "logs" / "0.1.0" / "kill_raise_segfault_lose.ftlog"
    assert main(["--store", f"file:{log}", "explain", "i2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " pass " in line or " take " in line]
    unable, taken = rows[:2]
    assert unable[:3] == ["4", "policies", "pass"]
    assert " ".join(unable[3:]).startswith("step_retry, hot_swap, dying_checkpoint, pod_replacement: the job lacks")
    assert taken[:2] == ["process_restart", "take"]
