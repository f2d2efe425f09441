"""The overview of an archive file, collected in a process of its own while the file is read for something else.

    python -P -m ftcore.launch.overview_process FILE PARENT      the packed overview on stdout, or nothing

House rules: it is a shortcut (``replay.overview``): without a usable result, for whatever reason, the overview is
collected by the process that needs it. The process ends with its parent.
"""

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from ftcore.launch.overview import LogOverview
from ftcore.logs.archive import read_footer, read_lines
from ftcore.logs.overviews import code_digest
from ftcore.replay.overview import JobOverview, OverviewLabel, restore_overview


class OverviewProcess:
    """The running process; a context manager that ends it.

    Args:
        path: the archive file.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, path: Path) -> None:
        argv = [sys.executable, "-P", "-m", "ftcore.launch.overview_process", str(path.resolve()), str(os.getpid())]
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        self._path = path
        self._process = subprocess.Popen(argv, stdin=null, stdout=pipe, stderr=null, start_new_session=True)

    def result(self, seq: int) -> JobOverview | None:
        """Wait for the overview; None: there is none, or it was made of other events or by other code.

        Args:
            seq: the last event of the file.

        Raises:
            LogCorrupt: the file is truncated.
        """
        stored, _ = self._process.communicate()
        label = OverviewLabel(code=code_digest(), seq=seq, digest=read_footer(self._path).digest)
        return restore_overview(stored, label)

    def __enter__(self) -> "OverviewProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._process:  # waits for it, and closes the pipe
            self._process.kill()


def main(argv: list[str]) -> None:
    """Write the overview of a file to stdout.

    Args:
        argv: the file, and the process id of the parent.
    """
    from ftcore.runtime.agent.workers.processes import die_with_parent

    die_with_parent(int(argv[1]))
    gc.freeze()  # as for a report
    gc.set_threshold(200_000, 20, 100)
    overview, digest = LogOverview(), b""
    overview.begin(b"", "")
    for line in read_lines(Path(argv[0])):
        overview.feed([line.body])
        digest = line.digest
    sys.stdout.buffer.write(overview.make(digest.hex()))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
