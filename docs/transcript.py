"""Runs the commands of the tutorial, and keeps its transcripts equal to what they print.

    python docs/transcript.py                  write the blocks that changed
    python docs/transcript.py --check          write nothing; exit 1, with the difference, if one changed
    python docs/transcript.py --check first    only the blocks of this job: first, broken or nodes

A block of ``docs/tutorial/first-job.md`` belongs to this script if ``<!-- transcript: NAME -->`` stands above it. Every
command is a line of a shell block there. Numbers and the width of columns are not compared, so times, process IDs,
ports, losses and digests of another run count as equal.
"""

import argparse
import contextlib
import difflib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "tutorial" / "first-job.md"
BLOCK = re.compile(r"(<!-- transcript: (\w+) -->\n```text\n)(.*?)(```)", re.DOTALL)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HOME, HOST = "/home/you", "vm"
"""Names that the page has in place of those of the machine that ran the commands."""
NUMBERS = (
    (r"ftcore: the platform is asked to launch a replacement for \w+\n", ""),
    (r", \d+ steps? lost", ""),
    (r"\b[0-9a-f]{16,}\b", "#"),
    (r"\d+(\.\d+)?( m?s\b)?", "#"),
    (r" +", " "),
    (r"#( #)+", "#"),
)
"""What two runs may differ in. On a busy machine the agent of a lost node starts so late that the platform is asked."""
TRIES = 3
"""Runs of one job: after the loss of a node, which sign of it comes first is a race."""
DEADLINE_S = 100


class Tutorial:
    """The page's files in a temporary folder, and its commands run there.

    Args:
        folder: an empty folder; the home of the job's log as well.
    """

    def __init__(self, folder: Path) -> None:
        blocks = FENCE.findall(PAGE.read_text())
        self.folder = folder
        self.known = {line for language, text in blocks if language == "sh" for line in text.splitlines()}
        self.script = next(text for language, text in blocks if language == "python")
        self.mistake = next(text for language, text in blocks if "raise ValueError" in text and language == "text")
        self.write(self.script)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("FTCORE_", "PET_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = plain | {"HOME": str(folder), "PATH": path, "COLUMNS": "120", "XDG_STATE_HOME": ""}

    def write(self, script: str) -> None:
        """Save the script."""
        (self.folder / "train.py").write_text(script)

    def prints(self, line: str) -> str:
        """Run a command of the page to its end and return its output."""
        with self.started(line) as job:
            return job.rest()

    @contextlib.contextmanager
    def started(self, line: str, code: int = 0) -> Iterator["Job"]:
        """Start a command of the page; at the end, it must have exited with ``code``."""
        assert any(known.split("   ")[0] == line for known in self.known), f"the page does not show: {line}"
        process = subprocess.Popen(
            shlex.split(line), cwd=self.folder, env=self.env, stdout=-1, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield Job(process, str(self.folder))
            if process.wait() != code:
                raise Different(f"{line} exited with {process.returncode}")
        finally:
            process.terminate()
            process.wait()


class Job:
    """A command that runs.

    Args:
        process: its process; its output is a pipe.
        folder: where it runs; the page shows a home directory in its place.
    """

    def __init__(self, process: subprocess.Popen[str], folder: str) -> None:
        self.process = process
        self.folder = folder
        self.lines: list[str] = []

    def reaches(self, text: str) -> None:
        """Read the output until a line contains a text."""
        for line in self._output():
            if text in line:
                return
        raise Different(f"the job ended without printing: {text}")

    def rest(self) -> str:
        """Read the output to its end and return all of it."""
        for _ in self._output():
            pass
        return "".join(self.lines)

    def _output(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.replace(self.folder, HOME).replace(os.uname().nodename, HOST))
            yield self.lines[-1]


class Different(Exception):
    """A command did not do what the page says."""


def first(page: Tutorial) -> dict[str, str]:
    """Kill a worker, then read the log."""
    with page.started("ftrun --standalone --nproc-per-node 2 --job first train.py") as job:
        job.reaches("step 10 ")
        event = json.loads(page.prints("ftctl events --type workers.started --format json"))
        job.reaches("step 30 ")
        os.kill(event["data"]["pids"][1], signal.SIGKILL)
        shown = job.rest()
    texts = {
        "first": narration(shown, "step "),
        "explain": page.prints("ftctl explain"),
        "events": page.prints("ftctl events --incident i1"),
        "verify": page.prints("ftctl replay --verify"),
    }
    page.prints("ftctl --job first export -o first.ftlog")
    if page.prints("ftctl --store file:first.ftlog explain") != texts["explain"]:
        raise Different("the exported log is explained otherwise")
    return texts


def broken(page: Tutorial) -> dict[str, str]:
    """Let rank 1 fail at the same step again and again."""
    page.write(page.script.replace("    time.sleep", page.mistake + "    time.sleep"))
    line = "ftrun --standalone --nproc-per-node 2 --job broken train.py"
    with page.started(line, code=1) as job:
        lines = narration(job.rest()).splitlines(True)
    begin = next(number for number, line in enumerate(lines) if ": i1:" in line)
    end = next(number for number, line in enumerate(lines) if "process_restart passes" in line)
    return {"broken": "".join([*lines[begin : begin + 2], "...\n", *lines[end:]])}


def nodes(page: Tutorial) -> dict[str, str]:
    """Kill an agent, then the master."""
    with page.started("ftrun --local-nodes 2 --job nodes train.py") as job:
        job.reaches("step 10 ")
        listed = page.prints("ftctl --job nodes events --type 'node.joined,master.elected' --format json")
        pids = {event["source"]: event["data"]["pid"] for event in map(json.loads, listed.splitlines())}
        job.reaches("step 30 ")
        os.kill(pids["node1"], signal.SIGKILL)
        job.reaches("i1: resolved")
        os.kill(pids["master"], signal.SIGKILL)
        lines = narration(job.rest()).splitlines(True)
    begin = next(number for number, line in enumerate(lines) if ": i1:" in line)
    return {"nodes": "".join(lines[begin:])}


JOBS: dict[str, Callable[[Tutorial], dict[str, str]]] = {"first": first, "broken": broken, "nodes": nodes}


def narration(output: str, *others: str) -> str:
    """Return the lines of ftrun and ftcore, and those with another prefix."""
    return "".join(line for line in output.splitlines(True) if line.startswith(("ftrun: ", "ftcore: ", *others)))


def shape(text: str) -> list[str]:
    """Return the lines of a text without what two runs may differ in."""
    for pattern, replacement in NUMBERS:
        text = re.sub(pattern, replacement, text)
    return [line.strip() for line in text.strip().splitlines()]


def compared(job: str, page: dict[str, str], *, patient: bool) -> dict[str, str]:
    """Run a job until it prints the page's blocks; return what the last run printed.

    Args:
        job: its name.
        page: the page's blocks.
        patient: try as often as allowed; else stop once two runs print the same.

    Raises:
        Different: the last run did not do what the page says.
    """
    wanted = [{name: shape(text) for name, text in page.items()}]
    for tries in range(1, TRIES + 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                texts = JOBS[job](Tutorial(Path(folder)))
            except Different:
                if tries == TRIES:
                    raise
                continue
        printed = {name: shape(text) for name, text in texts.items()}
        if any(printed.items() <= known.items() for known in wanted):
            break
        if not patient:
            wanted.append(printed)
    return texts


def main() -> int:
    """Compare the blocks of the page with what the commands print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a block changed")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="first, broken, nodes; default: all")
    args = parser.parse_args()
    source = PAGE.read_text()
    page = {name: text for _, name, text, _ in BLOCK.findall(source)}
    changed = {}
    for job in args.jobs or JOBS:
        for name, text in compared(job, page, patient=args.check).items():
            if shape(text) != shape(page[name]):
                changed[name] = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
                was, now = shape(page[name]), shape(text)
                print("\n".join(difflib.unified_diff(was, now, f"{name} in {PAGE.name}", "printed", lineterm="")))
    if not args.check:
        PAGE.write_text(BLOCK.sub(lambda m: m[1] + changed.get(m[2], m[3]) + m[4], source))
    return 1 if args.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
