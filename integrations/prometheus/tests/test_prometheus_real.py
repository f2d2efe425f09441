"""A real Prometheus scrapes a real job: a worker and a master are killed, and dashboard and alert rules are run."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ftcore_prometheus
import pytest
from harness import PATIENCE_S, Ftrun, ftrun, kill, wait_until

from ftcore.errors import STOPPED

pytestmark = pytest.mark.timeout(300)

FILES = Path(ftcore_prometheus.__file__).parent / "files"
RULES = FILES / "ftcore-alerts.yml"
DASHBOARD = FILES / "ftcore-dashboard.json"
REQUIRE = "FTCORE_REQUIRE_PROMETHEUS"


def required(*programs: str) -> None:
    """Skip the test without Prometheus; fail it where it is required."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing and os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{REQUIRE}=1, but there is no {' and no '.join(missing)}")
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)}; to run it: apt-get install prometheus")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Server:
    """A Prometheus that scrapes one endpoint every half second.

    Args:
        root: a directory of its own.
        target: port of the endpoint.
        token_file: with the token that the endpoint demands.
    """

    def __init__(self, root: Path, target: int, token_file: Path) -> None:
        self.port = free_port()
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "ftcore",
                    "authorization": {"credentials_file": str(token_file)},
                    "static_configs": [{"targets": [f"127.0.0.1:{target}"]}],
                }
            ],
        }
        path = root / "prometheus.yml"
        path.write_text(json.dumps(config))  # YAML 1.2 contains JSON
        self._log = (root / "prometheus.log").open("w")
        argv = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={root}/data"]
        self._process = subprocess.Popen(
            [*argv, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self._log, stderr=self._log, cwd=root
        )
        wait_until(self._ready, "Prometheus")

    def _ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            return bool(self._get("/-/ready"))
        except OSError:
            return False

    def _get(self, path: str, **query: str) -> bytes:
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query; raises ``OSError`` if Prometheus refuses it."""
        found = json.loads(self._get("/api/v1/query", query=expression))
        assert found["status"] == "success"
        return list(found["data"]["result"])

    def value(self, expression: str) -> float | None:
        """The only value of a query; None: there is none."""
        found = self.query(expression)
        assert len(found) < 2
        return float(found[0]["value"][1]) if found else None

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules as Prometheus evaluates them."""
        return list(json.loads(self._get("/api/v1/rules"))["data"]["groups"][0]["rules"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path) as one:
        yield one


def queries() -> list[tuple[str, str]]:
    """Panel and expression of each query of the dashboard, as Grafana would send it."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]
    found += [("annotation", each["expr"]) for each in dashboard["annotations"]["list"]]
    return [(title, text.replace("$training_job", "job").replace("$__rate_interval", "10s")) for title, text in found]


def test_rules_are_valid() -> None:
    required("promtool")
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_with_faults_under_prometheus(job: Ftrun, tmp_path: Path) -> None:
    """Restarts, phases, checkpoints, rank groups and the log's lag are there; a new master's endpoint counts on."""
    required("prometheus", "promtool")
    target = free_port()
    flags = ("--local-nodes", "3", "--nnodes", "2", "--checkpoints", "saved")
    observe = f"prometheus://127.0.0.1:{target}"
    run = job.start(*flags, "--observe", observe, script="registered.py", preload=False, args=("1000000", "ddp", "10"))
    job.stepped(1, nodes=2)
    token_file = next(job.home.rglob("*.token"))
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server", target, token_file)
    try:
        wait_until(lambda: server.value("ftcore_job_phase{phase='running'}") == 1.0, "the first scrape")
        wait_until(lambda: server.value("ftcore_spare_nodes") == 1.0, "the spare")
        job.wait("checkpoint.committed", 0)
        kill(job.pids(1)[0])
        job.stepped(2, nodes=2)
        wait_until(lambda: server.value("sum(ftcore_restarts_total)") == 1.0, "the restart")
        job.wait("checkpoint.committed", job.of("world.formed")[-1].seq)
        every_panel_has_data(server)

        before = job.of("master.elected")[-1].seq
        os.kill(job.master(), signal.SIGKILL)
        job.wait("master.elected", before)
        wait_until(lambda: server.value("ftcore_master_elections_total") == 2.0, "the endpoint of the next master")
        assert server.value("sum(ftcore_restarts_total)") == 1.0
        wait_until(lambda: server.value("ftcore_master_up") == 1.0, "its leader")
        rules = server.rules()
        assert len(rules) > 8
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}, rules
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
        assert job.ftctl("stop", "--job", job.job).returncode == 0
        assert run.end() == STOPPED
    finally:
        server.close()


def every_panel_has_data(server: Server) -> None:
    """Wait until every query of the dashboard has returned data; one that Prometheus refuses is an error at once."""
    left = {expression: title for title, expression in queries()}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for expression in list(left):
            if server.query(expression):
                del left[expression]
        if not left:
            return
        assert time.monotonic() < deadline, f"no data for {left}"
        time.sleep(0.2)
