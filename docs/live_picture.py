"""Writes docs/images/live.png: the live page of a simulated job of 16 nodes that has just lost one.

python docs/live_picture.py
"""

import sys
import tempfile
import threading
from pathlib import Path

import msgspec

from ftcore.ids import SECOND
from ftcore.live.page.server import PageServer
from ftcore.live.page.streams import Board
from ftcore.replay.live import Links, LiveReader
from ftcore.runtime.observers import ObservedNode
from ftcore.testing.driver import JobDriver

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests/unit/report"))
from chromium import started  # noqa: E402

NODES = 16
LATER_S = 14
"""The picture is taken that long after the last event."""


def view() -> bytes:
    """The view of the job, as the page gets it."""
    job = JobDriver(nodes=NODES, slots=8, tick_s=0.05, abilities=("replace", "park"))
    job.slow_platform = True
    reader = LiveReader("llm-7b")
    job.start()
    job.make_steps(40)
    job.commit()
    job.fail("node3", message="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.")
    job.settle()
    job.make_steps(12)
    job.lose("node11")
    job.settle()
    job.wait()  # the master replaces the node
    job.settle()
    for event in job.events:
        reader.feed(event)
    now = reader.state.time + LATER_S * SECOND
    beats = [
        ObservedNode(
            node=node.node,
            heard_s=0.3,
            round=node.round,
            step=job.step,
            absolute=True,
            loss=2.4131,
            step_s=1.21,
            own_s=0.88 + 0.002 * node.ordinal,
            phase=str(node.phase),
        )
        for node in reader.state.membership.alive()
    ]
    return msgspec.json.encode(reader.view(now, Links(beats=beats, beats_at=now, master_alive=True)).to_json())


def main() -> None:
    """Serve the view, and take the picture."""
    board, body, done = Board(), view(), threading.Event()
    server = PageServer("127.0.0.1", 0, board)

    def publish() -> None:
        while not done.wait(0.1):
            board.publish(1, body)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        with tempfile.TemporaryDirectory() as home, started(Path(home)) as browser:
            browser.show(1400, 1000)
            browser.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
            browser.wait("!document.getElementById('incident').hidden")
            browser.picture(ROOT / "docs/images/live.png", whole=False)
    finally:
        done.set()
        publishing.join()
        server.close()


if __name__ == "__main__":
    main()
