"""People are told, by a real HTTP service, and no recovery waits for it."""

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from harness import Ftrun, ftrun, kill, wait_until

from ftcore.events.codec import encode

SECRET = "s3cr3t-t0ken"
POLICY = "version: 1\nchain:\n- alert: {to: ['env:CHAT']}\n- process_restart\n- stop\n"


class Chat(ThreadingHTTPServer):
    """Keeps what is posted; answers when it is let to, with the code that it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posts: list[dict[str, Any]] = []
        self.answering = threading.Event()
        self.answering.set()
        self.code = 200
        self.url = f"json://me:{SECRET}@127.0.0.1:{self.server_address[1]}/{SECRET}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: Chat

    def do_POST(self) -> None:
        self.server.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.answering.wait(60)
        self.send_response(self.server.code)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def chat() -> Iterator[Chat]:
    server = Chat()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.answering.set()
    server.shutdown()
    thread.join()
    server.server_close()


def start(job: Ftrun, chat: Chat, policy: str = POLICY, **env: str):
    job.env |= {"CHAT": chat.url, **env}
    (job.cwd / "policy.yaml").write_text(policy)
    run = job.start("--policy", "policy.yaml")
    job.stepped(1)
    return run


def no_secret_in(job: Ftrun) -> None:
    assert all(SECRET not in encode(event).decode() for event in job.events.read())
    assert all(SECRET not in run.stderr() for run in job.runs)


def test_people_are_told_of_a_fault(tmp_path: Path, chat: Chat) -> None:
    """The message says what happened; the log says that it was sent, and nothing says where to."""
    with ftrun(tmp_path) as job:
        run = start(job, chat)
        job.do(0, "sys.exit(3)")
        sent = job.wait("alert.sent")
        assert sent.data.ok, sent.data.error
        [post] = chat.posts
        assert "exited with code 3" in post["message"] and post["title"].startswith("job: ")
        job.stepped(2)
        job.finish()
        assert run.end() == 0
        no_secret_in(job)


def test_alert_has_the_first_failure(tmp_path: Path, chat: Chat) -> None:
    """As a line for people, and as the object of ``ftctl failures --format json``; without secrets."""
    token = "hf_" + "Abc123" * 5
    with ftrun(tmp_path) as job:
        run = start(job, chat)
        job.do(0, f"raise ValueError('no access with {token}')")
        assert job.wait("alert.sent").data.ok
        [post] = chat.posts
        line = post["message"].splitlines()[1]
        assert line.startswith("rank 0 (local 0) on ") and "ValueError: no access with [redacted]" in line
        printed = json.loads(job.ftctl("failures", "--format", "json").stdout)
        assert printed == post["first_failure"] and token not in json.dumps(post)
        assert "no access with [redacted]" in printed["first"]["py_callstack"]
        job.stepped(2)
        job.finish()
        assert run.end() == 0


def test_a_service_that_hangs_holds_no_recovery(tmp_path: Path, chat: Chat) -> None:
    """The job is back before the service has answered; one that refuses is recorded with what it said."""
    chat.answering.clear()
    chat.code = 403
    with ftrun(tmp_path) as job:
        run = start(job, chat)
        job.do(0, "sys.exit(3)")
        job.wait("incident.resolved")
        assert not job.of("alert.sent")
        chat.answering.set()
        sent = job.wait("alert.sent")
        assert not sent.data.ok and sent.data.error.startswith("env:CHAT: ")
        wait_until(lambda: "could not be sent" in run.stderr(), "the narrator")
        job.finish()
        assert run.end() == 0
        no_secret_in(job)


def test_nobody_is_told_twice(tmp_path: Path, chat: Chat) -> None:
    """What a master could not record as sent the next one sends; what is in the log as sent is not sent again."""
    chat.answering.clear()
    with ftrun(tmp_path) as job:
        run = start(job, chat)
        job.do(0, "sys.exit(3)")
        wait_until(lambda: chat.posts, "the message")
        resolved = job.wait("incident.resolved")
        kill(job.master())
        chat.answering.set()
        sent = job.wait("alert.sent", resolved.seq)
        assert sent.data.ok and sent.term == 2 and len(chat.posts) == 2
        kill(job.master())
        job.wait("master.elected", sent.seq)
        job.steps_on()
        job.finish()
        assert run.end() == 0
        assert len(chat.posts) == 2 and len([e for e in job.events.read() if e.type == "alert.sent"]) == 1


def test_people_are_told_of_the_end(tmp_path: Path, chat: Chat) -> None:
    """``ftrun`` stays until people are told of the end: in a container its master would die with it."""
    with ftrun(tmp_path) as job:
        run = start(job, chat, POLICY.replace("- process_restart\n", ""))
        job.do(0, "sys.exit(3)")
        assert run.end() == 1
        assert len([event for event in job.events.read() if event.type == "alert.sent"]) == 2
        assert [post["type"] for post in chat.posts] == ["warning", "failure"]
        assert chat.posts[1]["title"] == "job: failed"


def test_the_end_waits_for_people_no_longer_than_it_is_let_to(tmp_path: Path, chat: Chat) -> None:
    """A signal ends the wait for a service that hangs; the exit code stays that of the job."""
    chat.answering.clear()
    with ftrun(tmp_path) as job:
        run = start(job, chat, POLICY.replace("- process_restart\n", ""))
        job.do(0, "sys.exit(3)")
        job.wait("node.left")
        run.signal(signal.SIGTERM)
        assert run.end() == 1
        assert not [event for event in job.events.read() if event.type == "alert.sent"]
        chat.answering.set()


def test_without_apprise(tmp_path: Path, chat: Chat) -> None:
    """What to install is said once; the job goes on."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "apprise.py").write_text("raise ImportError('not here')\n")
    with ftrun(tmp_path) as job:
        run = start(job, chat, PYTHONPATH=str(tmp_path / "lib"))
        for round_ in (2, 3):
            job.do(0, f"raise ValueError('{'x' * round_}')")
            job.stepped(round_)
        sent = job.wait("alert.sent")
        assert not sent.data.ok and "pip install 'ftcore[alerts]'" in sent.data.error
        job.finish()
        assert run.end() == 0
        assert len(job.of("alert.raised")) == 2 and len(job.of("alert.sent")) == 1


def test_a_target_is_tried_out(tmp_path: Path, chat: Chat) -> None:
    """``ftctl alert`` sends as the master would, and tells of each target what came of it, but no URL."""
    with ftrun(tmp_path) as job:
        job.env["CHAT"] = chat.url
        good = job.ftctl("alert", "env:CHAT", "--text", "hello")
        assert (good.returncode, good.stderr) == (0, "ftctl: env:CHAT: sent\n")
        assert chat.posts[0]["message"] == "hello"
        bad = job.ftctl("alert", "env:CHAT", "env:NOBODY", "nonsense://x", "--format", "json")
        assert bad.returncode == 1
        assert [told["ok"] for told in json.loads(bad.stdout)] == [True, False, False]
        assert json.loads(bad.stdout)[1]["error"] == "env:NOBODY: the environment of this command has no NOBODY"
        odd = job.ftctl("alert", "nonsense")
        assert odd.returncode == 2 and "expected env:NAME, file:/PATH or a URL" in odd.stderr
        chat.code = 500
        worse = job.ftctl("alert", chat.url)
        assert worse.returncode == 1 and "json://…: " in worse.stderr and SECRET not in worse.stderr
