"""What a report collects from a log."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_logs import HOSTILE, eventful, hostile, stored, train

from ftcore.cli.ctl_lines import style_of, summary
from ftcore.cli.ftctl import main
from ftcore.errors import UsageError
from ftcore.events.envelope import Event
from ftcore.events.job import JobProgressed, JobRolledBack
from ftcore.events.operator import OperatorNoted
from ftcore.ids import SECOND
from ftcore.logs.archive import read_events
from ftcore.replay import read
from ftcore.replay.causality import CausalTree, depth_first
from ftcore.replay.clocks import ClockBounds
from ftcore.replay.goodput import GoodputLedger
from ftcore.replay.incident_text import again_lines, clock_lines, cost_text, done_text, to_do_lines
from ftcore.replay.outlook import outlook
from ftcore.replay.report import ReportReader
from ftcore.replay.report.chain import ChainRecord
from ftcore.replay.report.curves import Curves
from ftcore.replay.report.event_table import LANDMARKS, EventTable
from ftcore.replay.report.limits import TREE_LINES_MAX
from ftcore.replay.report.places import Places
from ftcore.replay.report.ranks import RankTimes
from ftcore.replay.report.saves import Saves
from ftcore.replay.report.text import line, several_lines
from ftcore.replay.report.thinning import ThinnedCurve
from ftcore.testing.driver import JobDriver

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "logs").glob("*/*.ftlog"))


def collected(events: list[Event]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Report and events as a browser gets them."""
    reader = ReportReader(summary, style_of)
    read(events, reader)
    as_json = json.loads(json.dumps(reader.report("demo"), allow_nan=False))
    return as_json, reader.events()


def test_report_of_a_job_with_faults() -> None:
    driver = eventful()
    report, events = collected(driver.events)
    ledger = GoodputLedger()
    read(driver.events, ledger)
    expected = ledger.explainer.incidents()
    assert [row["id"] for row in report["incidents"]] == [incident.id for incident in expected]
    assert report["pages"][expected[0].id]["failures"][0]["message"] == "RuntimeError: lost"
    assert sum(seconds for _, seconds, _ in report["goodput"]["uses"]) == pytest.approx(report["goodput"]["wall_s"])
    spent = sum(end - begin for begin, end, _, _ in report["goodput"]["spans"])
    assert spent == pytest.approx(report["goodput"]["wall_s"], abs=0.01)
    assert [question["question"] for question in report["answers"]] == [
        "What happened?",
        "What was done?",
        "What did it cost?",
        "Will it happen again?",
    ]
    assert {lane["node"] for lane in report["places"]["lanes"]} == {"node0", "node1", "node2"}
    assert [row[0] for row in report["places"]["rounds"]] == [1, 2, 3]
    assert [row[:2] for row in report["ranks"]["rows"]] == [[2, 2]]
    assert report["ranks"]["rows"][0][2:] == [110.0, 120.0]
    assert report["curves"]["loss"][0][1:] == [driver_step(driver, 0), 1, 3.0 - driver_step(driver, 0) / 50]
    assert [flag[2:4] for flag in report["curves"]["flags"]] == [["loss-spike", 9.5], ["norm-spike", 80.0]]
    assert len(events["text"]) == len(driver.events) and sum(events["seq"]) == driver.events[-1].seq
    restart = next(entry for entry in report["policy"]["entries"] if entry["policy"] == "process_restart")
    assert restart["resolved"] >= 2


def test_a_note_long_after_the_end_is_not_part_of_the_time() -> None:
    driver = eventful()
    driver.stop()
    driver.settle(step=False)
    before, _ = collected(driver.events)
    driver.now += 3 * 86_400 * SECOND
    driver.own(OperatorNoted(who="ann@host", text="cause found"))
    after, events = collected(driver.events)
    assert after["end"] == before["end"] and after["pages"] == before["pages"]
    assert "operator.noted" in [events["words"][place] for place in events["type"]]


def test_pages_say_what_explain_says() -> None:
    """The answers and the tree of causes of every incident are those of ``ftctl explain``, from the same functions."""
    driver = eventful()
    report, _ = collected(driver.events)
    ledger = GoodputLedger()
    read(driver.events, ledger)
    clocks = ClockBounds()
    read(driver.events, clocks)
    found, goodput = ledger.explainer.incidents(), ledger.report()
    for incident in found:
        tree, page = CausalTree(incident.id), report["pages"][incident.id]
        read(driver.events, tree)
        order = depth_first(tree.nodes())
        assert [row[:2] for row in page["tree"]["rows"]] == [[node.event.seq, depth] for node, depth in order]
        assert page["tree"]["rows"] and page["tree"]["more"] == 0
        expected = outlook(incident, found, ledger.state, goodput.end)
        assert page["again"] == (again_lines(expected, incident) if expected is not None else [])
        assert page["to_do"] == (to_do_lines(expected) if expected is not None else [])
        cost = goodput.cost_of(incident.id)
        assert page["cost"] == cost_text(incident, cost, ledger.state) and page["done"] == done_text(
            incident, ledger.state
        )
        assert report["clocks"] == clock_lines(clocks.clocks())
        assert page["uses"] == (cost.seconds if cost is not None else {})


def test_page_of_a_large_job_stays_small() -> None:
    """1,000 nodes fail at once and start again: the page names some of them, and counts the others."""
    driver = JobDriver(nodes=1000, slots=8)
    answered(driver, driver.start)
    for place in range(40):
        driver.fail(f"node{place}", exitcode=1, message="RuntimeError: " + "x" * 5000)
    answered(driver, driver.settle)
    report, _ = collected(driver.events)
    page = report["pages"][report["incidents"][-1]["id"]]
    assert 10 < len(page["tree"]["rows"]) <= TREE_LINES_MAX
    assert len(json.dumps(page["tree"])) < 300 * TREE_LINES_MAX
    assert any(row[5] > 900 for row in page["tree"]["rows"])


def answered(driver: JobDriver, act: Callable[[], None]) -> None:
    """Do something and let all nodes answer: a driver settles 1,000 answers at a time."""
    while True:
        try:
            return act()
        except UsageError:
            act = driver.settle


def driver_step(driver: JobDriver, place: int) -> int:
    samples = [event.data.step for event in driver.events if isinstance(event.data, JobProgressed)]
    return samples[place]


def test_failed_job_says_why_first() -> None:
    driver = JobDriver(nodes=2, slots=1, tick_s=0.2)
    driver.start()
    for _ in range(40):
        if driver.state.ending is not None:
            break
        driver.fail("node0", exitcode=1, message="ValueError: the same")
        driver.settle()
    report, _ = collected(driver.events)
    why = report["answers"][0]
    assert report["mood"] == "bad" and why["question"] == "Why did it stop?"
    assert driver.state.reason()[:40] in why["text"] and why["incident"] == report["incidents"][-1]["id"]


def test_empty_log_and_log_without_a_run() -> None:
    report, events = collected([])
    assert report["headline"] == "No run was submitted yet" and events["seq"] == []
    assert report["goodput"]["goodput"] is None
    driver = JobDriver()
    driver.submit()
    assert collected(driver.events[:1])[0]["incidents"] == []


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_older_logs_and_every_beginning_of_them(path: Path) -> None:
    """A running job is the beginning of a log; each has its report, and times add up."""
    events = list(read_events(path))
    for length in {1, 2, len(events) // 3, len(events) // 2, len(events) - 1, len(events)}:
        report, _ = collected(events[:length])
        assert report["last_seq"] == length
        assert sum(row[1] for row in report["goodput"]["uses"]) == pytest.approx(report["goodput"]["wall_s"])


class Everything(frozenset[type]):
    """Contains every type."""

    def __contains__(self, item: object) -> bool:
        return True


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_part_declares_all_types_that_it_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = list(read_events(path))
    declared = collected(events)
    for part in (ChainRecord, Curves, Places, RankTimes, Saves):
        monkeypatch.setattr(part, "READS", Everything())
    assert collected(events) == declared


def test_hostile_and_long_text_is_cut_and_harmless() -> None:
    report, events = collected(hostile().events)
    text = json.dumps([report, events], ensure_ascii=False)
    assert (
        "\x1b" not in text and "\u202e" not in text and "</script>" in text
    )  # markup is text here; the page escapes it
    huge = "x" * 10_000_000
    report, events = collected(hostile(huge).events)
    assert len(json.dumps([report, events])) < 100_000
    assert "(cut: 10,000,000 characters" in json.dumps(report)


def test_text_is_cut() -> None:
    assert line("a\nb\x07") == "a | b "
    assert line("abcdef", 3).startswith("abc … (cut: 6 characters")
    assert several_lines("a\n\tb\x1b") == "a\n\tb "
    cut = several_lines("a" * 50 + "b" * 50, 10)
    assert cut.startswith("aaaaa\n… (cut: 100") and cut.endswith("\nbbbbb")
    assert "\x1b" not in line(HOSTILE)


def test_thinned_curve_keeps_outliers() -> None:
    curve = ThinnedCurve(100)
    added = [(step, step, 1, 1000.0 if step == 77_777 else math.sin(step)) for step in range(100_000)]
    for first in range(0, 100_000, 333):
        curve.extend(added[first : first + 333])
    points = curve.points()
    assert len(points) <= 110 and curve.count == 100_000
    assert max(value for _, _, _, value in points) == 1000.0
    assert points == sorted(points)
    at_once, one_by_one = ThinnedCurve(100), ThinnedCurve(100)
    at_once.extend(added)
    for point in added:
        one_by_one.extend([point])
    assert at_once.points() == one_by_one.points() == points


def test_routine_events_are_thinned_first() -> None:
    driver = JobDriver(nodes=2)
    driver.start()
    train(driver, 500)
    driver.fail("node0", exitcode=-9)
    driver.settle()
    table = EventTable(summary, style_of, most=120)
    read(driver.events, table)
    shown, counts = table.to_json(0), table.left_out()
    types = [shown["words"][place] for place in shown["type"]]
    notable = [event for event in driver.events if event.type in ("incident.opened", "worker.failed", "world.formed")]
    assert len(types) == counts["shown"] <= 120 < counts["total"] == len(driver.events)
    assert counts["landmarks"] == 1 and counts["routine"] > 1
    assert sum(kind in ("incident.opened", "worker.failed", "world.formed") for kind in types) == len(notable)


def test_landmarks_are_thinned_last() -> None:
    """Incidents and failures stay, even if there are few routine events to leave out."""
    driver = JobDriver(nodes=2)
    driver.start()
    for _ in range(12):
        driver.fail("node0", exitcode=-9)
        driver.settle()
    landmarks = sum(event.type in LANDMARKS for event in driver.events)
    table = EventTable(summary, style_of, most=landmarks + 60)
    read(driver.events, table)
    shown, counts = table.to_json(0), table.left_out()
    assert counts["shown"] < counts["total"] == len(driver.events)
    assert sum(shown["words"][place] in LANDMARKS for place in shown["type"]) == landmarks
    few = EventTable(summary, style_of, most=20)
    read(driver.events, few)
    assert few.left_out()["shown"] <= 20 and few.left_out()["landmarks"] > 1


def test_rollbacks_are_marked() -> None:
    driver = eventful()
    curves = Curves()
    read(driver.events, curves)
    curves.feed(msg_of(driver, JobRolledBack(step=10, before=20, reason="spike")))
    assert curves.to_json(driver.events[0].time)["rollbacks"][0][1:] == (10, 20, "spike")


def msg_of(driver: JobDriver, data: Any) -> Event:
    last = driver.events[-1]
    return Event(
        seq=last.seq,
        id=last.id,
        time=last.time,
        type="job.rolled_back",
        kind=last.kind,
        source="master",
        term=last.term,
        data=data,
    )


def test_command_writes_and_replaces_only_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = stored(tmp_path / "demo.ftlog", eventful().events), tmp_path / "demo.html"
    assert main(["--store", store, "report", "-o", str(out), "--price", "2"]) == 0
    first = out.read_bytes()
    assert "per GPU-hour" in first.decode() and '"preset":"torchrun-like"' in first.decode()
    assert main(["--store", store, "report", "-o", str(out), "--price", "2"]) == 0
    assert out.read_bytes() == first and "was overwritten" in capsys.readouterr().err
    out.write_text("<!doctype html>\n<p>mine")
    assert main(["--store", store, "report", "-o", str(out)]) == 2
    assert out.read_text() == "<!doctype html>\n<p>mine"


def test_secrets_of_messages_are_not_in_the_page(tmp_path: Path) -> None:
    """A report is made for sharing; the message of a failure is in it more than once."""
    driver, out = eventful(), tmp_path / "demo.html"
    driver.fail("node2", exitcode=1, message="ValueError: bad batch, token=abc123secret4567")
    driver.settle()
    assert main(["--store", stored(tmp_path / "demo.ftlog", driver.events), "report", "-o", str(out)]) == 0
    page = out.read_text()
    assert "abc123secret4567" not in page and "token=[redacted]" in page


def test_log_that_is_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report covers the readable part, and says so; the exit code says that the log is damaged."""
    whole, out = tmp_path / "demo.ftlog", tmp_path / "demo.html"
    stored(whole, eventful().events)
    lines = whole.read_bytes().splitlines(keepends=True)
    damaged = [b"".join(lines[:40]) + lines[40][:-9] + b'broken"}\n' + b"".join(lines[41:]), b"".join(lines[:40])]
    for data in (*damaged, b"".join(lines[:40]) + lines[40][:20]):
        whole.write_bytes(data)
        assert main(["--store", f"file:{whole}", "report", "-o", str(out)]) == 1
        assert "the log could be read up to event 39: " in capsys.readouterr().err
        report = json.loads(out.read_text().partition('id="report-data">')[2].partition("</script>")[0])
        assert report["cut"] and report["last_seq"] == 39 and report["job"] == "demo"
