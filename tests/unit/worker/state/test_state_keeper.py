"""Training processes with the keeper's own process: the whole way from a save to a resume."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_processes import Ranks, until
from states import loaded, same, whole

from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify
from ftcore.shm import messages

pytestmark = pytest.mark.timeout(300)  # several processes with torch, one after the other


class RealKeeper:
    """The keeper's process, and the agent's side of its control channel."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.url = path, url
        listener = messages.new_socket()
        listener.bind(str(path))
        listener.listen(64)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (listener.fileno(), theirs.fileno())
        code = (
            f"import os, sys; found = [os.dup(fd) for fd in {fds}]; os.dup2(found[0], 3); os.dup2(found[1], 4); "
            "os.set_inheritable(3, True); os.set_inheritable(4, True); "
            "os.execv(sys.executable, [sys.executable, '-m', 'ftcore.runtime.keeper'])"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code], pass_fds=fds)
        listener.close()
        theirs.close()
        self._control = ours
        ours.settimeout(60)
        messages.send(ours, {"job": "demo", "log": "5a1e", "node": "node0", "url": url})
        self._asked = 0
        self.told: list[dict[str, Any]] = []

    def ask(self, **request: Any) -> dict[str, Any]:
        self._asked += 1
        messages.send(self._control, {"id": self._asked, **request})
        while True:
            message, _ = messages.receive(self._control)
            assert message is not None
            if message.get("id") == self._asked:
                return message
            self.told.append(message)

    def close(self) -> None:
        messages.send(self._control, {"bye": "succeeded"})
        self.process.wait(60)
        self._control.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[RealKeeper]:
    made = RealKeeper(Path(os.environ["XDG_RUNTIME_DIR"]) / f"r{os.getpid()}-{id(tmp_path)}", str(tmp_path / "saved"))
    yield made
    made.close()
    made.path.unlink(missing_ok=True)


@pytest.fixture
def ranks(zygote: Any, tmp_path: Path, keeper: Any) -> Ranks:
    return Ranks(zygote, tmp_path, keeper)


@pytest.mark.parametrize(("layout", "size"), [("ddp", 2), ("hsdp", 4)])
def test_saved_persisted_and_resumed(ranks: Ranks, keeper: RealKeeper, layout: str, size: int) -> None:
    """The last step is on storage when the processes end; the next ones load it, from memory and from there."""
    first = ranks("session", size, layout=layout)
    assert keeper.ask(written=1)["failed"] == []
    shards = [told["persisted"] for told in keeper.told if "persisted" in told]
    groups = {shard["group"]: shard["file"] for shard in shards if shard["step"] == 3}
    assert len(groups) == shards[0]["groups"]
    done = keeper.ask(commit={"round": 1, "step": 3, "files": list(groups.values())})
    assert "committed" in done, done
    assert verify(Storage(keeper.url), "step-000000003-r1") == []
    for source in ("memory", "storage"):
        again = ranks("session", size, layout=layout, seed=8, resume=(3, source), of=1)
        assert loaded(again, 0, "start")["loaded"][:2] == (3, source)
        assert same(whole(first, "end"), whole(again, "start"))
        assert all(loaded(first, r, "end")["rng"] == loaded(again, r, "start")["rng"] for r in range(size))


def test_survivors_are_ordered_to_stage(ranks: Ranks, keeper: RealKeeper) -> None:
    """Rank 1 hangs: the others stage step 3, which no save has staged; their group's shard is written."""
    out = ranks.start("stage_cases:blocked", 3, layout="ddp", save_every=0)
    until(lambda: all((out / f"{rank}.ready").exists() for rank in range(3)))
    staged: list[dict[str, int]] = []

    def all_answer() -> bool:
        staged[:] = keeper.ask(stage=1)["staged"]
        return {each["rank"] for each in staged} == {0, 1, 2}

    until(all_answer)  # they connect in the background
    assert [each["step"] for each in staged] == [3, 3, 3]
    written = keeper.ask(persist={"round": 1, "step": 3, "ranks": [0]})
    assert written["failed"] == []
    file = written["persisted"][0]["file"]
    assert "committed" in keeper.ask(commit={"round": 1, "step": 3, "files": [file]})
    for rank in range(3):
        os.kill(int((out / f"{rank}.pid").read_text()), signal.SIGKILL)
    ranks.finish(out, fails=True)
    assert verify(Storage(keeper.url), "step-000000003-r1") == []
