"""What the documentation claims: its Python runs, its commands parse, its files and links exist."""

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from signatures import API

from ftcore import worker
from ftcore.cli import ctl_parser, options
from ftcore.policies.file.config import parse

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")) if path.is_file()
)
PACKAGES = sorted(ROOT.glob("integrations/*/README.md"))
"""Pages of packages that add commands and platforms; their Python is a part of a script."""
LINKING = [
    *PAGES,
    *PACKAGES,
    *sorted(path for part in ("tests", "benchmarks") for path in ROOT.glob(f"{part}/**/*.md")),
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]+")
FOREIGN_FLAGS = {
    "examples/frameworks/README.md": "--cpu --gradient_accumulation_steps --mixed_precision --num_machines "
    "--num_processes --use_deepspeed --use_fsdp",  # accelerate launch
    "docs/how-to/try-on-yesterdays-job.md": "--duplicates --log-dir --redirects --tee "
    "--timestamps",  # torchrun, Slurm, kubectl
    "integrations/slurm/README.md": "--dir --lead --no-drain --requeues --sbatch "  # ftctl slurm
    "--no-kill --ntasks-per-node --signal",  # Slurm's own
}
"""Flags of other programs that a page names."""
TOGETHER = ("docs/tutorial/postmortem.md",)
"""Pages whose files need each other: ``tests/chaos/ftrun/test_tutorial.py`` runs them."""
QUICK = (
    "import sys, time; time.sleep = lambda seconds: None; path = sys.argv[1]; "
    "exec(compile(open(path).read(), path, 'exec'), {'__name__': '__main__'})"
)
"""Runs a file without its pauses."""


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for language, text in BLOCK.findall(page.read_text()):
            if language in languages:
                yield str(page.relative_to(ROOT)), text


def commands() -> Iterator[tuple[str, str]]:
    """Each line of a shell block that runs ftrun or ftctl, without its comment."""
    for page, text in blocks("sh"):
        for line in text.splitlines():
            if line.startswith(("ftrun ", "ftctl ")):
                yield page, line


def name(value: object) -> str:
    return str(value).strip().split("\n")[0][:60] if isinstance(value, str) else repr(value)


@pytest.mark.parametrize(("page", "code"), [each for each in blocks("python") if each[0] not in TOGETHER], ids=name)
def test_python_runs(page: str, code: str, tmp_path: Path) -> None:
    """Every Python block runs as a program of its own, as the only rank of its world."""
    script = tmp_path / "block.py"
    script.write_text(code)
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", QUICK, str(script)],
        cwd=tmp_path,
        env=env | {"MASTER_PORT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{page}:\n{done.stderr}"


@pytest.mark.parametrize(("page", "line"), list(commands()), ids=name)
def test_command_parses(page: str, line: str) -> None:
    """Every command line of ftrun and ftctl in a shell block is one that their parsers take."""
    program, *words = shlex.split(line.replace("$RANK", "0").partition(" > ")[0], comments=True)
    parser = options.build_parser() if program == "ftrun" else ctl_parser.build_parser("0")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except SystemExit:
        pytest.fail(f"{page}: {line}: {said.getvalue()}")


@pytest.mark.parametrize(
    "page",
    [page for page in (*PAGES, *PACKAGES) if "reference" not in page.parts],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_flags_exist(page: Path) -> None:
    """Every flag named in code on a page is a flag of ftrun or ftctl, but for those of other programs."""
    known = options.build_parser().format_help() + ctl_parser.build_parser("0").format_help()
    known += "".join(command.format_help() for command in _ftctl_commands())
    foreign = set(FOREIGN_FLAGS.get(str(page.relative_to(ROOT)), "").split())
    code = [
        inline
        for inline in CODE.findall(BLOCK.sub("", page.read_text()))
        if not inline.startswith(("pip", "git", "python "))
    ]
    named = {flag for part in code for flag in FLAG.findall(part)}
    assert named - set(FLAG.findall(known)) <= foreign


def _ftctl_commands() -> Iterator["ctl_parser.argparse.ArgumentParser"]:
    for action in ctl_parser.build_parser("0")._actions:
        if isinstance(action, ctl_parser.argparse._SubParsersAction):
            yield from action.choices.values()


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    """Every relative link leads to a file, and its anchor to a heading there."""
    missing = []
    for target in LINK.findall(BLOCK.sub("", page.read_text())):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in _anchors(found)):
            missing.append(target)
    assert missing == []


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *PACKAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_files_exist(page: Path) -> None:
    """Every path of a Python file that a page names exists in the root or the package, or is patched there."""
    text = page.read_text()
    named = [path for path in CODE.findall(BLOCK.sub("", text)) if re.fullmatch(r"[\w./]+/\w+\.py", path)]
    foreign = {path for _, block in BLOCK.findall(text) for path in re.findall(r"(?m)^\+\+\+ b/(\S+)", block)}
    wrong = [path for path in named if not any((base / path).exists() for base in (ROOT, ROOT / "ftcore"))]
    assert set(wrong) <= foreign, "neither here nor in a patch of the page"


@pytest.mark.parametrize(("page", "text"), [b for b in blocks("yaml") if "version:" in b[1]], ids=name)
def test_policy_files_are_valid(page: str, text: str) -> None:
    """Every policy file on a page is one that ftrun takes."""
    parse(text, page)


def test_make_targets_exist() -> None:
    """Every ``make TARGET`` in the documentation is a target of the Makefile, and ``make help`` lists it."""
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set()
    for page in (*PAGES, *PACKAGES):
        text = page.read_text()
        named |= set(re.findall(r"`make ([a-z]+)", text)) | set(re.findall(r"^make ([a-z]+)", text, re.MULTILINE))
    assert named <= targets
    assert {"demo", "test"} <= named


def test_index_names_every_page() -> None:
    """README leads to the index, the index to every page of docs/; decisions have an index of their own."""
    assert "(docs/README.md)" in (ROOT / "README.md").read_text()
    index = (ROOT / "docs/README.md").read_text()
    decisions = (ROOT / "docs/decisions/README.md").read_text()
    for page in (ROOT / "docs").glob("**/*.md"):
        path = page.relative_to(ROOT / "docs")
        if path.parts[0] == "decisions" and page.name != "README.md":
            assert f"({page.name})" in decisions
        elif page != ROOT / "docs/README.md":
            assert f"({path})" in index


def test_api_pages_show_every_public_name() -> None:
    """A public name is on a page of the Python API, under its module or the defining one; the names there exist."""
    names = (Path(__file__).parent / "public_api.txt").read_text().split()
    shown = {"ftcore.__version__", *(f"ftcore.worker.{name}" for name in worker.__all__)}  # docs/reference/worker.md
    for page in (ROOT / "docs/reference/api").glob("*.md"):
        for module, listed in API.findall(page.read_text()):
            loaded = importlib.import_module(module)
            found = listed.split() or getattr(loaded, "__all__", [])
            assert [name for name in found if not hasattr(loaded, name)] == []
            shown |= {f"{prefix}.{name}" for name in found for prefix in (module, "ftcore")}
    assert [name for name in names if name not in shown] == []


def test_messages_of_troubleshooting_exist() -> None:
    """Every message that the troubleshooting page quotes, piece by piece, is a text of the code."""
    rows = [
        line for line in (ROOT / "docs/how-to/troubleshooting.md").read_text().splitlines() if line.startswith("| `")
    ]
    quoted = {text for row in rows for text in CODE.findall(row.split(" | ")[0])}
    source = "\n".join(path.read_text() for path in ROOT.glob("ftcore/**/*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # a message over several lines of code
    assert len(quoted) > 10
    assert [text for text in quoted if text not in source and " " in text] == []
