"""Runs the commands of the tutorials, and keeps their transcripts equal to what they print.

    python docs/transcript.py                  write the blocks that changed
    python docs/transcript.py --check          write nothing; exit 1, with the difference, if one changed
    python docs/transcript.py --check first    only the blocks of this job: first, broken, nodes or postmortem

A block of ``docs/tutorial/first-job.md`` or ``postmortem.md`` belongs to this script if ``<!-- transcript: NAME -->``
stands above it. Every command is a line of a shell block there, and a block that begins with ``# FILE`` is that file.
Numbers and the width of columns are not compared, so times, process IDs, ports, losses and digests of another run count
as equal.
"""

import argparse
import contextlib
import difflib
import getpass
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

TUTORIALS = Path(__file__).parent / "tutorial"
BLOCK = re.compile(r"(<!-- transcript: (\w+) -->\n```text\n)(.*?)(```)", re.DOTALL)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w.]+)\n")
HOME, HOST = "/home/you", "vm"
"""Names that the page has in place of those of the machine that ran the commands."""
NUMBERS = (
    (r"(what did it cost\? +).*GPU-seconds", r"\1"),
    (r"/[0-9a-f]{8}/", "/"),
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
        source: the text of the page.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self.blocks = FENCE.findall(source)
        self.folder = folder
        self.known = {line for language, text in self.blocks if language == "sh" for line in text.splitlines()}
        files = {found[1]: text for _, text in self.blocks if (found := FILE.match(text))}
        for name, text in files.items():
            (folder / name).write_text(text)
        self.script = files["train.py"]
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("FTCORE_", "PET_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = plain | {"HOME": str(folder), "PATH": path, "COLUMNS": "120", "XDG_STATE_HOME": ""}

    def insert(self, containing: str, before: str) -> None:
        """Save the script with the page's block of text that contains a string put before a line of it."""
        part = next(text for language, text in self.blocks if language == "text" and containing in text)
        assert before in self.script
        (self.folder / "train.py").write_text(self.script.replace(before, part + before))

    def prints(self, line: str) -> str:
        """Run a command of the page to its end and return its output."""
        with self.started(line) as job:
            return job.rest()

    @contextlib.contextmanager
    def started(self, line: str, code: int | None = 0, last: str = "") -> Iterator["Job"]:
        """Start a command of the page; at the end, it must have exited with ``code``, if that is not None.

        ``last`` replaces its last word.
        """
        assert any(known.split("   ")[0] == line for known in self.known), f"the page does not show: {line}"
        words = shlex.split(line)
        process = subprocess.Popen(
            [*words[:-1], last or words[-1]],
            cwd=self.folder,
            env=self.env,
            stdout=-1,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield Job(process, str(self.folder))
            if code is not None and process.wait() != code:
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
            line = line.replace(self.folder, HOME).replace(f"{getpass.getuser()}@", "you@")
            self.lines.append(line.replace(os.uname().nodename, HOST))
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
    page.insert("raise ValueError", before="    time.sleep")
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


def postmortem(page: Tutorial) -> dict[str, str]:
    """Kill a worker, let the data break the script, look for the cause, and fix it."""
    page.prints("python make_data.py")
    line = "ftrun --standalone --nproc-per-node 2 --job fit --policy policy.yaml train.py"
    port = free_port()
    page.env["ALERT_URL"] = f"json://127.0.0.1:{port}"
    with page.started("python receive.py 8123", code=None, last=port) as receiver:
        receiver.reaches("waiting for alerts")
        with page.started(line, code=1) as job:
            job.reaches("step 10")
            event = json.loads(page.prints("ftctl events --type workers.started --format json"))
            job.reaches("step 30")
            os.kill(event["data"]["pids"][1], signal.SIGKILL)
            texts = {"fit": narration(job.rest())}
        receiver.process.terminate()
        texts["alerts"] = receiver.rest().partition("\n")[2].rstrip() + "\n"
        texts["failures"] = page.prints("ftctl failures --all")
        texts["fault"] = page.prints("ftctl explain i2").partition("\n\n")[0] + "\n"
        texts["logs"] = top(page.prints("ftctl logs i2"))
    note = next(known for known in page.known if known.startswith("ftctl note"))
    texts["cost"] = page.prints("ftctl goodput").partition("\n")[0] + "\n"
    texts["cost"] += page.prints("ftctl report -o fit.html") + page.prints(note)
    page.insert("skipped", before="        x, y =")
    page.env["ALERT_URL"] = "json://127.0.0.1:1"  # nothing fails any more, so nothing is sent
    with page.started(line) as job:
        texts["again"] = narration(job.rest(), "skipped")
    chronicle = page.prints("ftctl logbook").partition("\n## ")[2].splitlines(True)
    texts["logbook"] = "".join(line for line in chronicle if line.startswith(("- **", "  >")))
    return texts


def free_port() -> str:
    """A port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def top(logs: str) -> str:
    """The first file of ``ftctl logs``, without the marks below the lines of its traceback."""
    head, first = logs.split("\n==> ")[:2]
    lines = f"{head}\n==> {first}".splitlines(True)
    return "".join(
        line for line in lines if set(line.removeprefix("[rank1]: ").strip()) - set("^~") or not line.strip()
    )


JOBS: dict[str, tuple[str, Callable[[Tutorial], dict[str, str]]]] = {
    "first": ("first-job.md", first),
    "broken": ("first-job.md", broken),
    "nodes": ("first-job.md", nodes),
    "postmortem": ("postmortem.md", postmortem),
}
"""By name: the page, and what runs its commands."""


def narration(output: str, *others: str) -> str:
    """Return the lines of ftrun and ftcore, and those with another prefix."""
    return "".join(line for line in output.splitlines(True) if line.startswith(("ftrun: ", "ftcore: ", *others)))


def shape(text: str) -> list[str]:
    """Return the lines of a text without what two runs may differ in."""
    for pattern, replacement in NUMBERS:
        text = re.sub(pattern, replacement, text)
    return [line.strip() for line in text.strip().splitlines()]


def compared(job: str, source: str, *, patient: bool) -> dict[str, str]:
    """Run a job until it prints the page's blocks; return what the last run printed.

    Args:
        job: its name.
        source: the text of its page.
        patient: try as often as allowed; else stop once two runs print the same.

    Raises:
        Different: the last run did not do what the page says.
    """
    wanted = [{name: shape(text) for _, name, text, _ in BLOCK.findall(source)}]
    for tries in range(1, TRIES + 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                texts = JOBS[job][1](Tutorial(Path(folder), source))
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


def with_blocks(source: str, changed: dict[str, str]) -> str:
    """The text of a page with other blocks."""
    return BLOCK.sub(lambda m: m[1] + changed.get(m[2], m[3]) + m[4], source)


def main() -> int:
    """Compare the blocks of the pages with what the commands print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a block changed")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"{', '.join(JOBS)}; default: all")
    args = parser.parse_args()
    different = False
    for job in args.jobs or JOBS:
        path = TUTORIALS / JOBS[job][0]
        source = path.read_text()
        changed = {}
        for name, text in compared(job, source, patient=args.check).items():
            was, now = shape(next(each[2] for each in BLOCK.findall(source) if each[1] == name)), shape(text)
            if was != now:
                changed[name] = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
                print("\n".join(difflib.unified_diff(was, now, f"{name} in {path.name}", "printed", lineterm="")))
        different = different or bool(changed)
        if changed and not args.check:
            path.write_text(with_blocks(source, changed))
    return 1 if args.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
