"""``ftctl`` on logs that the production engine made: what the commands show."""

import argparse
import json
import re
import time

import msgspec
import pytest
from ftctl_logs import archive, driven, run_json

from ftcore.cli.ctl_store import among
from ftcore.cli.ftctl import main
from ftcore.errors import NotFound
from ftcore.events.envelope import Event
from ftcore.events.job import JobSpec
from ftcore.ids import JobName
from ftcore.logs.archive import read_events
from ftcore.policies.file.config import parse
from ftcore.testing.driver import JobDriver
from ftcore.wording import utc


def test_status_tells_the_contract(store, capsys):
    """The JSON of ``status`` has the agreed fields with the folded state's values."""
    made = run_json(capsys, "--store", store, "status")
    assert {"job", "state", "term", "master", "world", "step", "incidents_open", "last_seq", "replicas"} <= set(made)
    assert (made["state"], made["world"]["size"], made["incidents_open"]) == ("running", 4, 0)


def test_status_tells_what_people_asked_for(tmp_path, capsys):
    """A paused job, a held one, a node that is kept out, what the job can do: in JSON and for people."""
    driver = JobDriver(spec=JobSpec(argv=("t.py",), nodes_min=1, nodes_max=3), abilities=("pause",))
    driver.start()
    driver.make_steps(3)
    driver.command("evict", node="node2")
    driver.settle()
    driver.command("pause", why="maintenance")
    driver.settle()
    url = archive(tmp_path / "paused.ftlog", driver.events)
    made = run_json(capsys, "--store", url, "status")
    assert (made["state"], made["paused"], made["held"], made["request"]) == ("paused", True, False, None)
    assert list(made["quarantined"]) == ["node2"] and made["abilities"] == {"driver": ["pause"]}
    assert main(["status", "--store", url]) == 0
    out = capsys.readouterr().out
    assert (
        f"continue with: ftctl --store {url} --job demo resume" in out
        and "node2 (user@host asked for `evict node2`)" in out
    )


def test_status_tells_of_a_held_job(tmp_path, capsys):
    """Recoveries do not begin, and who waits for what is told."""
    driver = driven()
    driver.fail("node0")
    driver.command("pause")
    driver.command("checkpoint", why="before it gets worse")
    url = archive(tmp_path / "held.ftlog", driver.events)
    made = run_json(capsys, "--store", url, "status")
    assert made["held"] and (made["request"]["command"], made["request"]["who"]) == ("checkpoint", "user@host")
    assert main(["status", "--store", url]) == 0
    out = capsys.readouterr().out
    assert (
        "no recovery begins until the job is resumed" in out and "checkpoint by user@host: before it gets worse" in out
    )


def test_incidents_of_every_kind(tmp_path, capsys):
    """A request that no policy took is dropped, not failed; actions on a fault are listed as sentences."""
    driver = driven()
    driver.command("pause")
    url = archive(tmp_path / "kinds.ftlog", driver.events)
    made = run_json(capsys, "--store", url, "incidents")
    assert [incident["kind"] for incident in made] == ["fault", "request"]
    assert main(["incidents", "--store", url]) == 0
    assert "dropped" in capsys.readouterr().out
    assert main(["explain", "i1", "--store", url]) == 0
    out = capsys.readouterr().out
    assert "Actions and results" in out and "round 2: 4 ranks on 2 nodes" in out


def test_incidents_are_counted_by_kind(tmp_path, capsys):
    """Requests are no faults."""
    driver = driven()
    driver.command("pause")
    driver.command("checkpoint")
    assert main(["incidents", "--store", archive(tmp_path / "kinds.ftlog", driver.events)]) == 0
    last = " ".join(capsys.readouterr().out.split("rank")[-1].split())
    assert "1 fault, 2 requests; TOTAL: from the fault, for a hang from the last step, until the first new step" in last


def test_a_pause_is_explained_by_its_length(tmp_path, capsys):
    """Nothing is lost, the plan was carried out in place, and the pause has a length."""
    driver = JobDriver(abilities=("pause",), tick_s=1.0)
    driver.start()
    driver.make_steps(3)
    driver.command("pause")
    driver.settle()
    driver.command("resume")
    driver.settle()
    url = archive(tmp_path / "paused.ftlog", driver.events)
    assert main(["explain", "i1", "--store", url]) == 0
    out = capsys.readouterr().out
    assert re.search(r"paused 1\.0 s, from 2", out) and re.search(r"1\.0 s \(paused 1\.0 s\).*; no step", out)
    assert re.search(r"decide +in place +total *\n", out) and "first_step" not in out


def test_a_failed_job_is_not_resolved(tmp_path, capsys):
    """The incident ended with the job."""
    driver = JobDriver(policy=parse("version: 1\nchain: [stop]\n", "p"))
    driver.start()
    driver.make_steps(3)
    driver.fail("node1")
    driver.settle()
    url = archive(tmp_path / "failed.ftlog", driver.events)
    assert main(["explain", "--store", url]) == 0
    assert "i1: ended by stop: the job failed" in capsys.readouterr().out
    assert main(["status", "--store", url]) == 0
    out = capsys.readouterr().out
    assert "not alive" not in out and " ago)" not in out


def test_status_shows_the_age_of_the_step(store, capsys):
    """The step is a sample."""
    assert main(["status", "--store", store]) == 0
    assert re.search(r"step +[0-9]+ \([0-9smh ]+ ago\)", capsys.readouterr().out)


def test_a_list_of_jobs_says_how_many_more_there_are():
    """And which command lists all; a job that is not found may have lost its log."""
    names = [JobName(f"job{number:02d}") for number in range(12)]
    with pytest.raises(NotFound) as raised:
        among(names, argparse.Namespace(store="sqlite:///s", job="nope"))
    assert "no job 'nope' in sqlite:///s; there are: job00, " in str(raised.value)
    assert "job09 and 2 more, see ftctl jobs; if its ftrun still runs, its log was removed" in str(raised.value)


def test_started_workers_are_listed_with_their_pids(store, capsys):
    """At most the first few."""
    assert main(["events", "--store", store, "--type", "workers.started"]) == 0
    assert "2 workers by fork: local rank 0 pid 1000, local rank 1 pid" in " ".join(capsys.readouterr().out.split())


def test_jobs_is_one_array(store, capsys):
    """``jobs`` gives a list, each job in brief."""
    [job] = run_json(capsys, "jobs", "--store", store)
    assert (job["job"], job["state"], job["node_count"]) == ("demo", "running", 2)


def test_events_are_one_object_a_line(store, capsys):
    """Every line is an event with every field of its envelope."""
    assert main(["events", "--store", store, "--format", "json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    fields = {
        "seq",
        "event_id",
        "time",
        "time_ns",
        "at",
        "type",
        "source",
        "kind",
        "cause",
        "incident",
        "term",
        "v",
        "ignorable",
        "data",
    }
    assert all(set(event) == fields for event in events)


@pytest.mark.parametrize(
    ("argv", "types"),
    [
        (["--type", "incident.*"], {"incident.opened", "incident.rediagnosed", "incident.resolved"}),
        (["--since", "3", "--until", "4"], {"policy.loaded", "node.joined"}),
        (["--until", "2023-11-14T22:13:20.03"], {"master.elected"}),
        (["--until", "2023-11-14T23:13:20.03+01:00"], {"master.elected"}),
        (["--since", "15m"], set()),
        (["--incident", "i1", "--type", "worker.*,policy.*"], {"worker.failed", "policy.considered"}),
        (["--node", "node1", "--until", "2"], set()),
    ],
)
def test_events_are_narrowed(store, capsys, argv, types):
    """By seq, time, age, glob, node and incident."""
    assert main(["events", "--store", store, "--format", "json", *argv]) == 0
    assert {json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()} == types


def test_an_age_counts_by_the_logs_clock_where_that_is_ahead(store, capsys, monkeypatch):
    """On a host whose clock is behind, the last events are the youngest all the same."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_600_000_000 * 10**9)
    assert main(["events", "--store", store, "--format", "json"]) == 0
    times = [json.loads(line)["time_ns"] for line in capsys.readouterr().out.splitlines()]
    assert main(["events", "--store", store, "--format", "json", "--since", "1ms"]) == 0
    young = [json.loads(line)["time_ns"] for line in capsys.readouterr().out.splitlines()]
    assert young == [at for at in times if at >= times[-1] - 10**6] != times


def test_incidents_since_a_position(tmp_path, capsys, monkeypatch):
    """By seq, time and age: those that were open then or later."""
    driver = driven()
    driver.settle()
    driver.now += 3600 * 10**9
    middle = len(driver.events)
    driver.fail("node0", message="ValueError: x")
    store = archive(tmp_path / "since.ftlog", driver.events)
    monkeypatch.setattr(time, "time_ns", lambda: driver.now)
    first, second = run_json(capsys, "--store", store, "incidents")
    for since in (str(middle + 1), second["opened"], "30m"):
        assert run_json(capsys, "--store", store, "incidents", "--since", since) == [second]
    for since in (str(first["last_seq"]), first["closed"], "2h"):
        assert len(run_json(capsys, "--store", store, "incidents", "--since", since)) == 2


def test_the_table_of_events_is_for_people(store, capsys):
    """The date first, a line per event, decisions indented, no colour where there is no terminal."""
    assert main(["events", "--store", store]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2023-11-14 (UTC)"
    assert lines[1].startswith("     1 22:13:20.020  master.elected         host pid 1 leads")
    [opened] = [line for line in lines if "incident.opened" in line]
    assert "   incident.opened      i1: collateral: rank 2 on node1" in opened
    assert "\x1b" not in "".join(lines)


def test_what_a_worker_wrote_does_not_steer_the_terminal(tmp_path, capsys):
    """Escape sequences and newlines in messages are shown as plain text on one line."""
    driver = driven()
    driver.fail("node0", message="ValueError: \x1b[2J\x07boo\nmore")
    store = archive(tmp_path / "x.ftlog", driver.events)
    for command in ("events", "incidents", "explain"):
        assert main([command, "--store", store]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\x07" not in out


def test_incidents_and_explain(store, capsys):
    """A list of incidents; one of them, the newest if none is named."""
    [incident] = run_json(capsys, "incidents", "--store", store)
    explained = run_json(capsys, "explain", "--store", store)
    assert explained == run_json(capsys, "explain", "i1", "--store", store)
    assert incident == {name: explained[name] for name in incident}
    assert explained["lost_time"]["id"] == "i1" and explained["tree"][0]["parent_seq"] is None
    assert explained["outlook"]["of_class"] == 1 and {each["preset"] for each in explained["presets"]} >= {"mindio"}
    assert (incident["class"], incident["root"]) == ("signal-preemption", {"node": "node0", "rank": 1})
    for command in (["incidents"], ["explain"], ["explain", "i1"]):
        assert main([*command, "--store", store]) == 0
        assert "rank 1 on node0 was ended by SIGKILL" in capsys.readouterr().out


def test_replay_rebuilds_any_point(store, capsys):
    """The state and its digest after an event; at 0 there is nothing yet."""
    made = run_json(capsys, "replay", "--at", "5", "--store", store)
    assert (made["seq"], made["folded"]["phase"], len(made["digest"])) == (5, "assembling", 32)
    assert run_json(capsys, "replay", "--at", "0", "--store", store)["seq"] == 0
    assert main(["replay", "--at", "5", "--store", store]) == 0
    assert made["digest"] in capsys.readouterr().out


def test_verify_agrees_with_an_honest_log(store, capsys):
    """Exit 0, and what was compared."""
    made = run_json(capsys, "replay", "--verify", "--store", store)
    assert (made["verify"]["ok"], made["verify"]["mismatches"]) == (True, [])
    assert main(["replay", "--verify", "--store", store]) == 0
    assert "every decision is the same" in capsys.readouterr().out


def test_verify_finds_an_altered_decision(tmp_path, capsys):
    """Exit 1 with the seq and the difference, in words and in JSON."""
    from ftcore.testing.logs import rewrite_archive

    archive(tmp_path / "a.ftlog", driven().events)
    seqs = [
        event.seq for event in driven().events if event.type == "policy.considered" and event.data.plan == "restart"
    ]

    def change(event: Event) -> Event:
        if event.seq != seqs[0]:
            return event
        return msgspec.structs.replace(event, data=msgspec.structs.replace(event.data, grace_s=77.0))

    rewrite_archive(tmp_path / "a.ftlog", tmp_path / "b.ftlog", change)
    store = f"file:{tmp_path / 'b.ftlog'}"
    assert main(["replay", "--verify", "--store", store]) == 1
    out = capsys.readouterr().out
    assert f"event {seqs[0]}: a different decision\n  data.grace_s: expected 10.0, found 77.0\n" in out
    assert main(["replay", "--verify", "--store", store, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["verify"]["mismatches"][0]["seq"] == seqs[0]


def test_a_log_is_taken_away_and_read(store, tmp_path, capsys):
    """What was exported is the log, and messages go to stderr."""
    target = tmp_path / "away.ftlog"
    assert main(["export", "-o", str(target), "--store", store]) == 0
    out, err = capsys.readouterr()
    assert (out, err.startswith("ftctl: wrote ")) == ("", True)
    assert [event.seq for event in read_events(target)] == [event.seq for event in driven().events]


@pytest.mark.parametrize("form", ["table", "mermaid", "dot"])
def test_machines_are_drawn(form, capsys):
    """All of them, or the one that is named, in each form."""
    assert main(["machines", "--format", form]) == 0
    whole = capsys.readouterr().out
    assert main(["machines", "node", "--format", form]) == 0
    one = capsys.readouterr().out
    assert "replaced" in one
    assert len(one) < len(whole)


def test_urls_of_a_policy_file_are_not_shown(tmp_path, capsys):
    """What of them is a secret nobody can tell, so only the scheme is shown: in events and in the state."""
    from ftcore.policies.file.config import parse

    text = "version: 1\nchain:\n- alert: {to: ['json://me:secret@chat/secret']}\n- stop\n"
    driver = JobDriver(policy=parse(text, "policy.yaml"))
    driver.start()
    store = archive(tmp_path / "a.ftlog", driver.events)
    for argv in (["events", "--format", "json"], ["events"], ["replay"], ["replay", "--format", "json"]):
        assert main([*argv, "--store", store]) == 0
        out = capsys.readouterr().out
        assert "secret" not in out and ("json://…" in out or argv == ["events"])


def test_what_a_job_can_do_is_told_where_nothing_was_declared(store, capsys):
    """A line that is not there says nothing."""
    assert main(["--store", store, "status"]) == 0
    assert "abilities  none beyond a restart, and going on with fewer nodes: no platform" in capsys.readouterr().out


def test_status_says_that_workers_report_abilities_with_a_step(tmp_path, capsys):
    """Before the first completed step, what the script can do is not known; afterwards the row says what it is."""
    driver = JobDriver(nodes=1, abilities=("replace",))
    driver.submit()
    before = archive(tmp_path / "before.ftlog", driver.events)
    driver.join("node0")
    driver.settle()
    after = archive(tmp_path / "after.ftlog", driver.events)
    assert main(["status", "--store", before]) == 0
    assert "abilities  replace; workers report theirs with the first completed step" in capsys.readouterr().out
    assert main(["status", "--store", after]) == 0
    assert "workers report theirs" not in capsys.readouterr().out


def test_a_selection_may_be_empty(store, capsys):
    """A known type that did not occur, or a known node with no event there, is a true answer of none."""
    for argv in (["--type", "node.lost"], ["--node", "node1", "--until", "2"]):
        assert main(["events", *argv, "--store", store]) == 0
        assert capsys.readouterr() == ("", "ftctl: no events match the selection\n")


def test_json_has_one_form_of_time(store, capsys):
    """Every moment stands by RFC 3339 in UTC and, with _ns behind its name, in nanoseconds since the epoch."""
    status, incidents = run_json(capsys, "--store", store, "status"), run_json(capsys, "--store", store, "incidents")
    assert main(["events", "--store", store, "--format", "json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    places = [(status, "time"), *((event, "time") for event in events)]
    places += [(event["at"], "wall") for event in events if event["at"] is not None]
    for incident in incidents:
        places += [(incident, "opened"), (incident, "closed")]
        places += [(failure, name) for failure in incident["failures"] for name in ("time", "raised")]
    for fields, name in places:
        if fields[name] is None:
            assert fields[f"{name}_ns"] is None
        else:
            assert utc(fields[f"{name}_ns"]) == fields[name] and fields[name].endswith("Z")
