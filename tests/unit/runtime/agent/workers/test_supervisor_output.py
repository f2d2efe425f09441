"""Destinations of output: always log files, the console as configured, and a bounded tail in memory."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from supervisor_harness import Node

from ftcore.ports import Launch
from ftcore.runtime.agent.workers.output import CONSOLE_LAG_BYTES_MAX, LINE_BYTES_MAX, Console, Output

LINES = "import sys, os; print('out', os.environ['RANK']); print('err', os.environ['RANK'], file=sys.stderr)"


@pytest.mark.parametrize(
    ("options", "out", "err"),
    [
        ({}, {"out 0", "out 1"}, {"err 0", "err 1"}),
        ({"redirects": 1}, set(), {"err 0", "err 1"}),
        ({"redirects": 3}, set(), set()),
        ({"redirects": {1: 2}}, {"out 0", "out 1"}, {"err 0"}),
        ({"tee": 3}, {"[default0]:out 0", "[default1]:out 1"}, {"[default0]:err 0", "[default1]:err 1"}),
        ({"tee": {0: 2}}, {"out 0", "out 1"}, {"[default0]:err 0", "err 1"}),
        ({"redirects": 3, "tee": {0: 1}}, {"[default0]:out 0"}, set()),
        ({"local_ranks_filter": (1,)}, {"out 1"}, {"err 1"}),
        ({"tee": 3, "local_ranks_filter": (0,)}, {"[default0]:out 0"}, {"[default0]:err 0"}),
        ({"tee": 1, "line_prefix": "<${rank}> "}, {"<0> out 0", "<1> out 1"}, {"err 0", "err 1"}),
    ],
)
def test_the_console_shows_the_selected_output(
    tmp_path: Path, options: dict[str, object], out: set[str], err: set[str]
) -> None:
    """Redirects, tee, filter and prefix as in torchrun; the files have all output."""
    with (tmp_path / "out").open("wb") as stdout, (tmp_path / "err").open("wb") as stderr:
        output = Output(stdout=stdout.fileno(), stderr=stderr.fileno(), **options)  # type: ignore[arg-type]
        node = Node(tmp_path, output=output)
        try:
            launch = node.launch(node.script(LINES), workers=2)
            node.run(node.ended(launch))
        finally:
            node.close()
    assert set((tmp_path / "out").read_text().splitlines()) == out
    assert set((tmp_path / "err").read_text().splitlines()) == err
    for rank in range(2):
        assert (Path(launch.log_dirs[rank]) / "stdout.log").read_text() == f"out {rank}\n"
        assert (Path(launch.log_dirs[rank]) / "stderr.log").read_text() == f"err {rank}\n"


def test_a_line_of_ten_megabytes_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is complete in the file and in order on the console; only its end stays in memory."""
    lag = "ftcore.runtime.agent.workers.output.CONSOLE_LAG_BYTES_MAX"
    monkeypatch.setattr(lag, 64 << 20)  # a slow console drops nothing
    shown = tmp_path / "shown"
    with shown.open("wb") as stdout:
        node = Node(tmp_path, output=Output(stdout=stdout.fileno(), tee=1))
        try:
            source = "import sys; sys.stdout.write('0123456789' * 1_000_000); sys.stdout.write('end')"
            ended = node.run(node.ended(node.launch(node.script(source))))
            assert len(ended.stdout) == 10_000_003
            assert node.supervisor.tail(0, 4096) == ended.stdout[-4096:]
        finally:
            node.close()
    text = shown.read_text()
    assert text.startswith("[default0]:0123456789")
    assert text.count("[default0]:") == 1
    assert text.endswith("end")


def test_a_console_that_nobody_reads_blocks_nothing(tmp_path: Path) -> None:
    """The worker ends, the file is complete; a note counts the dropped output once the console is read again."""
    reads, writes = os.pipe()
    node = Node(tmp_path, output=Output(stdout=writes))
    total = 20_000
    # One write a line: a line that a slow worker leaves half-written is shown as it is, and not what is tried here.
    script = f"import os\nfor i in range({total}): os.write(1, b'%d %s\\n' % (i, b'x' * 400))"
    ended = node.run(node.ended(node.launch(node.script(script))))
    assert ended.codes == (0,)
    assert ended.stdout.count("\n") == total
    got = bytearray()
    reader = threading.Thread(target=lambda: got.extend(iter_read(reads)))
    reader.start()
    node.run(node.ended(node.launch(node.script("print('the last line')"))))
    node.close()
    os.close(writes)
    reader.join()
    os.close(reads)
    lines = got.decode().splitlines()
    notes = [line for line in lines if line.startswith("ftcore: ")]
    shown = [line for line in lines if not line.startswith("ftcore: ")]
    assert shown[-1] == "the last line"
    numbers = [int(line.split()[0]) for line in shown[:-1]]
    assert numbers == sorted(set(numbers))
    assert all(line.endswith(" " + "x" * 400) for line in shown[:-1])
    lost = sum(int(note.split()[1].replace(",", "")) for note in notes)
    assert lost == sum(len(f"{n} {'x' * 400}\n") for n in set(range(total)) - set(numbers)) > 0


def iter_read(fd: int) -> bytes:
    """All bytes until the end."""
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts)


def test_a_closed_console_is_given_up() -> None:
    """Nothing waits for a console whose reader has ended."""
    reads, writes = os.pipe()
    os.close(reads)
    console = Console(writes)
    console.put(b"x\n")
    assert console.flush(30.0)
    console.put(b"y" * (CONSOLE_LAG_BYTES_MAX + 1))
    assert console.flush(30.0)
    os.close(writes)


def test_a_prompt_without_an_end_is_shown(tmp_path: Path) -> None:
    """A partial line and a progress bar's carriage returns reach the console while the worker still runs."""
    reads, writes = os.pipe()
    node = Node(tmp_path, output=Output(stdout=writes))
    try:
        source = "import sys, time; sys.stdout.write('50%\\r'); sys.stdout.write('name: '); time.sleep(600)"
        node.run(node.supervisor.start(node.launch(node.script(source))))

        async def shown() -> str:
            got = ""
            os.set_blocking(reads, False)
            while "name: " not in got:
                try:
                    got += os.read(reads, 100).decode()
                except BlockingIOError:
                    await asyncio.sleep(0.005)
            return got

        assert node.run(shown()) == "50%\rname: "
    finally:
        node.close()
        os.close(reads)
        os.close(writes)


def test_the_tail_prefers_stderr_and_whole_lines(root: Node) -> None:
    """A bounded number of bytes from the start of a line, of stderr if there is any."""
    source = "import sys\nprint('out')\nfor i in range(100): print('line', i, 'é', file=sys.stderr)"
    root.run(root.ended(root.launch(root.script(source))))
    assert root.supervisor.tail(0, 30) == "line 98 é\nline 99 é\n"
    assert root.supervisor.tail(0, 0) == ""
    root.run(root.ended(root.launch(root.script("import os; os.write(1, bytes([255]) * 100)"))))
    assert len(root.supervisor.tail(0, 50).encode()) <= 50
    root.run(root.ended(root.launch(root.script(f"print('x' * {4 * LINE_BYTES_MAX})"))))
    assert root.supervisor.tail(0, 8) == "xxxxxxx\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_neither_blocks_nor_kills(root: Node, small_disk: Path) -> None:
    """The worker runs to its end; the file is truncated; one note says where and why."""
    launch = root.launch(root.script("for i in range(20000): print(i, 'x' * 100)"))
    full = logs_in(launch, small_disk)
    root.run(root.supervisor.start(full))
    (ended,) = root.run(root.next_exits(1))
    assert ended.exitcode == 0
    root.run(root.supervisor.stop(0.0))
    assert 0 < (small_disk / "stdout.log").stat().st_size <= 65536
    assert root.supervisor.tail(0, 200).endswith(f"19999 {'x' * 100}\n")
    (note,) = root.notes
    assert f"{small_disk}/stdout.log: No space left on device (ENOSPC)" in note


def test_a_log_directory_that_cannot_be_made_is_noted(root: Node) -> None:
    """The worker runs without log files, and a note says so."""
    (root.root / "file").write_text("")
    launch = logs_in(root.launch(root.script("print('on')")), root.root / "file" / "logs")
    root.run(root.supervisor.start(launch))
    (ended,) = root.run(root.next_exits(1))
    assert ended.exitcode == 0
    assert root.supervisor.tail(0, 100) == "on\n"
    assert any("Not a directory" in note for note in root.notes)


def logs_in(launch: Launch, path: Path) -> Launch:
    """The launch with another log directory."""
    return attrs.evolve(launch, log_dirs=(str(path),))
