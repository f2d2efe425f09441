"""What the documentation names exists in the code: commands, policies, options, abilities, events, variables.

And what it says in the present tense can be done: where a page names what this release cannot carry out, it says so.
"""

import re
from pathlib import Path

import pytest

from ftcore.cli import ctl_parser
from ftcore.events import all_types
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.abilities import CARRIED_OUT, OBSERVED, not_covered
from ftcore.policies.base import Ability
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.file import presets

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if page.name != "CHANGELOG.md" and "reference" not in page.parts
)
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
SUFFIXES = ("py", "md", "txt", "toml", "yaml", "pt", "sh", "db")
NOUNS = {event.name.partition(".")[0] for event in all_types()}
OBJECTS = {"job"}
"""Nouns that are objects of the policy protocol as well: ``job.time`` is an attribute there."""
ABLE = {*CARRIED_OUT, *OBSERVED}
LIMITED = re.compile(r"\byet\b|\bnot supported\b|\bno way to\b")


def source() -> str:
    files = (
        *ROOT.glob("ftcore/**/*.py"),
        *ROOT.glob("integrations/*/ftcore_*/*.py"),
        ROOT / "conftest.py",
        *ROOT.glob("tests/**/fleet.py"),
    )
    return "\n".join(path.read_text() for path in files)


SOURCE_WORDS = set(re.findall(r"\w+", source()))


def subcommands() -> dict[str, set[str]]:
    """The commands of ftctl, each with its actions."""
    parser = ctl_parser.build_parser("0")
    commands = next(action.choices for action in parser._actions if action.dest == "command")
    return {
        name: {word for action in command._actions if action.dest == "action" for word in action.choices}
        for name, command in commands.items()
    }


COMMANDS = subcommands()


def wrong_names(text: str) -> list[str]:
    """What a page's code names and the code does not know."""
    inline = CODE.findall(BLOCK.sub("", text))
    blocks = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    wrong = []
    for code in (*inline, *blocks):
        for words in re.findall(r"\bftctl ((?:--\w+ \S+ )*[a-z][a-z ]*)", code):
            command, *rest = re.sub(r"--\w+ \S+ ", "", words).split()
            if command not in COMMANDS or (COMMANDS[command] and rest[:1] and rest[0] not in COMMANDS[command]):
                wrong.append(f"ftctl {words}")
        wrong += [name for name in re.findall(r"\bFTCORE_[A-Z_]+[A-Z]\b", code) if not _is_variable(name)]
    for code in inline:
        if re.fullmatch(r"[a-z]+(?:_[a-z0-9]+)+", code) and code not in SOURCE_WORDS:
            wrong.append(code)
        noun, dot, rest = code.partition(".")
        is_event = dot and noun in NOUNS - OBJECTS and re.fullmatch(r"[a-z_]+", rest) and rest not in SUFFIXES
        if is_event and code not in {event.name for event in all_types()}:
            wrong.append(code)
    return wrong


def _is_variable(name: str) -> bool:
    """As the code spells it, or as it puts it together: FTCORE_ETCD_ and what follows."""
    parts = name.split("_")
    return name in SOURCE_WORDS or any("_".join(parts[n:]).lower() in SOURCE_WORDS for n in range(1, len(parts)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_of_a_page_exist(page: Path) -> None:
    """Commands of ftctl, policies and options, events, environment variables."""
    assert wrong_names(page.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "`ftctl incident`",
        "`ftctl --job x polcy check f`",
        "`ftctl policy chekc f`",
        "```sh\nftctl resum --job x\n```",
        "`step_retries`",
        "`rollback_and_skipp`",
        "`node.losst`",
        "`FTCORE_STOER`",
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str) -> None:
    """The check can fail."""
    assert wrong_names(text)


def test_lists_in_pages_hold_known_words() -> None:
    """Abilities, presets and classes are those of the code, wherever a page lists them behind their key."""
    known = {
        "classes": {str(cls) for cls in FaultClass},
        "abilities": {str(ability) for ability in Ability},
        "preset": set(presets.names()),
        "--assume": {str(ability) for ability in Ability},
    }
    found = set()
    for page in PAGES:
        for key, words in known.items():
            for told in re.findall(
                rf"(?<![\w-]){key}:? \[?([a-z][a-z-]*(?:, ?[a-z][a-z-]*)*)[\]`\n}} ]", _code_of(page)
            ):
                named = set(re.split(r", ?", told))
                found.add(key)
                assert named <= words, (page.name, key, told)
    assert found >= {"abilities", "preset"}


def _code_of(page: Path) -> str:
    text = page.read_text()
    return "\n".join([*CODE.findall(BLOCK.sub("", text)), *BLOCK.findall(text)]) + "\n"


def needing_what_cannot_be_done() -> set[str]:
    return {name for name, policy in BUILT_IN.items() if not_covered(policy.needs, ABLE.__contains__)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_that_names_what_cannot_be_done_says_so(page: Path) -> None:
    """Policies whose abilities this release does not carry out."""
    text = page.read_text()
    named = {name for name in needing_what_cannot_be_done() if f"`{name}`" in text or f"- {name}" in text}
    assert not named or LIMITED.search(text), f"{page.name} names {', '.join(sorted(named))} as if they could be done"
