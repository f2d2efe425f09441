"""Secrets in text that is going to be shared: output of workers, command lines, messages.

``PATTERNS`` is the whole knowledge: each entry finds one kind of secret, and the group ``secret`` of its expression is
replaced. What stays shows which kind it was and where, so a reader knows that a token was there.

House rules: pure. An expression begins with one of its literals and is tried only where one is, and every repetition
is bounded or over one character class, so the time is linear in the text. Numbers alone are never secrets: training
logs count tokens. No expression goes beyond the end of a line; private keys of several lines are found by ``Redactor``.
This is a safety net, not a proof: an unknown kind of secret stays.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import attrs

HIDDEN: Final = "[redacted]"
"""What stands for a secret."""

OVERLAP_CHARS: Final = 20_000
"""More characters than any secret with its name has."""

KEY_LINES_MAX: Final = 200
"""Most lines of a private key: an RSA key of 16,384 bits has 200."""


@attrs.frozen
class SecretPattern:
    """One kind of secret.

    Args:
        name: what it is.
        expression: a regular expression with a group ``secret``.
        literals: what it begins with, in lower case.
    """

    name: str
    expression: re.Pattern[str]
    literals: tuple[str, ...]


def _pattern(name: str, literals: str, expression: str, flags: re.RegexFlag = re.IGNORECASE) -> SecretPattern:
    return SecretPattern(name, re.compile(expression, flags), tuple(literals.split()))


_CASE: Final = re.NOFLAG
_QUOTE = r"\\{0,3}['\"]"
"""A quote, escaped if the text is JSON within JSON."""

_IS = rf"(?:{_QUOTE})?\]?[ \t]{{0,3}}(?:=>|:=|[:=])[ \t]{{0,3}}(?P<quote>{_QUOTE})?"
"""Between a name and its value."""

_QUOTED = r"(?:(?!(?P=quote))(?:\\[^\r\n]|[^\\\r\n]))"
"""A character up to the closing quote."""

_NAMES = r"(?:(?:api|access|account|private|secret)[_-]?key|secret|token|credentials?|auth)"
_NAME_LITERALS = "secret token credential auth " + " ".join(
    f"{kind}{dash}key" for kind in ("api", "access", "account", "private", "secret") for dash in ("", "_", "-")
)
_PASSWORDS = r"(?:password|passwd|passphrase)"
_NO_NUMBER = r"(?![0-9.,+-]+(?![A-Za-z0-9_/+=~.:-]))"
_VALUE_CHAR = r"[A-Za-z0-9_./+=~:%@!#$^&*-]"
_VALUE = rf"{_NO_NUMBER}(?={_VALUE_CHAR})(?P<secret>(?(quote){_QUOTED}|{_VALUE_CHAR}){{6,8000}})"
"""A value that is not a plain number; in quotes all of it."""

_PASSWORD = rf"(?!None\b|null\b|True\b|False\b)(?P<secret>(?(quote){_QUOTED}|[^\s'\",;)}}\]]){{3,8000}})"
_OPTION = r"(?<![A-Za-z0-9_-])--(?!-)[A-Za-z0-9_-]{0,40}"
_GIVEN = rf"(?:=|[ \t]{{1,4}}|{_QUOTE},?[ \t]{{0,4}})(?P<quote>{_QUOTE})?(?!--)"
"""Between an option and its value, also in the list of a program's arguments."""

_BREAK = r"(?:[ \t]|\\{1,4}[nr])"
_KEY = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"

PATTERNS: Final = (
    _pattern(
        "private key on one line",
        "-----begin",
        rf"{_KEY}(?P<secret>(?:(?!-----)[^\r\n]){{1,{OVERLAP_CHARS}}}+(?=-----END )"
        rf"|(?={_BREAK}{{0,9}}(?:[A-Za-z0-9+/=]{{8}}|Proc-Type:|DEK-Info:))[^\r\n\"']{{1,{OVERLAP_CHARS}}})",
        _CASE,
    ),
    _pattern("password in a URL", "://", r"://[^\s/:@'\"]{0,200}:(?P<secret>[^\s/'\"]{1,500})@"),
    _pattern("user name in a URL that may be a token", "http", r"https?://(?P<secret>[A-Za-z0-9_-]{20,500}+)@"),
    _pattern(
        "parameter of a URL",
        "? &",
        r"[?&](?:[A-Za-z0-9_.-]{0,30}(?:token|key|secret|password|signature|credential)|sig)=(?P<secret>[^\s&'\"#]{1,4000})",
    ),
    _pattern(
        "authorization header",
        "authorization",
        rf"authorization(?:{_QUOTE})?[ \t]{{0,4}}[:=][ \t]{{0,4}}(?:{_QUOTE})?"
        r"(?:(?:bearer|basic|token|digest|negotiate)[ \t]{1,4})?(?P<secret>[^\s'\",;\\]{4,8000})",
    ),
    _pattern("bearer token", "bearer", r"\bbearer[ \t]{1,4}(?P<secret>[A-Za-z0-9_.~+/=-]{12,8000})"),
    _pattern("cookie header", "cookie", rf"cookie(?:{_QUOTE})?[ \t]{{0,4}}:[ \t]{{0,4}}(?P<secret>[^\r\n]{{4,8000}})"),
    _pattern(
        "AWS access key",
        "akia asia aroa aida agpa anpa",
        r"(?<![A-Za-z0-9])(?P<secret>(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA)[A-Z0-9]{16})(?![A-Za-z0-9])",
        _CASE,
    ),
    _pattern(
        "Hugging Face token", "hf_ api_org_", r"(?<![A-Za-z0-9])(?P<secret>(?:hf|api_org)_[A-Za-z0-9]{20,200})", _CASE
    ),
    _pattern(
        "GitHub token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"(?<![A-Za-z0-9])(?P<secret>(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,255})",
        _CASE,
    ),
    _pattern(
        "GitLab token",
        "glpat- glrt- gldt-",
        r"(?<![A-Za-z0-9])(?P<secret>gl(?:pat|rt|dt)-[A-Za-z0-9_-]{16,200})",
        _CASE,
    ),
    _pattern("Slack token", "xox", r"(?<![A-Za-z0-9])(?P<secret>xox[a-z]-[A-Za-z0-9-]{10,250})", _CASE),
    _pattern(
        "Slack webhook",
        "hooks.slack.com/",
        r"hooks\.slack\.com/(?:services|workflows)/(?P<secret>[A-Za-z0-9/_-]{8,250})",
    ),
    _pattern("key of an API", "sk-", r"(?<![A-Za-z0-9])(?P<secret>sk-[A-Za-z0-9_-]{20,250})", _CASE),
    _pattern("Google API key", "aiza", r"(?<![A-Za-z0-9])(?P<secret>AIza[A-Za-z0-9_-]{35})", _CASE),
    _pattern(
        "JSON web token",
        "eyj",
        r"(?<![A-Za-z0-9])(?P<secret>eyJ[A-Za-z0-9_-]{8,1000}+\.[A-Za-z0-9_-]{8,8000}+\.[A-Za-z0-9_-]{0,8000})",
        _CASE,
    ),
    _pattern("named password", "password passwd passphrase", rf"{_PASSWORDS}{_IS}{_PASSWORD}"),
    _pattern("short name of a password", "pwd", rf"pwd{_IS}(?![/~.]|[a-z]:){_PASSWORD}"),  # PWD is a directory
    _pattern("named value", _NAME_LITERALS, rf"{_NAMES}{_IS}{_VALUE}"),
    _pattern("value of an option", "--", rf"{_OPTION}{_NAMES}{_GIVEN}{_VALUE}"),
    _pattern("password as an option", "--", rf"{_OPTION}{_PASSWORDS}{_GIVEN}{_PASSWORD}"),
    _pattern(
        "password of curl",
        "-u --user --proxy-user",
        rf"(?<![A-Za-z0-9_-])(?:-u|--user|--proxy-user)(?:=|[ \t]{{0,4}}|{_QUOTE},[ \t]{{0,4}})(?:{_QUOTE})?"
        r"[^\s:'\"/\\-][^\s:'\"/\\]{0,100}:(?P<secret>(?![0-9]+(?![^\s'\"]))[^\s'\"\\]{3,500})",
    ),
    _pattern(
        "login of a netrc file",
        "login",
        r"\blogin[ \t]{1,8}[^\s]{1,200}[ \t]{1,8}password[ \t]{1,8}(?P<secret>[^\s'\"]{1,500})",
    ),
    _pattern(
        "password of a netrc file",
        "password",
        r"(?<![A-Za-z0-9_-])password[ \t]{1,8}(?P<secret>(?=\S{0,200}[0-9])[^\s'\"]{6,500})(?=[ \t]{0,8}(?:[\r\n]|\Z))",
    ),
)
"""What is replaced, in this order."""

_LITERALS: Final = tuple(sorted({literal for pattern in PATTERNS for literal in pattern.literals}))

_KEY_BEGIN = re.compile(_KEY)
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_REST = re.compile(rf"(?:\s|\\{{1,4}}[nr]|[\"',+)]|{re.escape(HIDDEN)})*")
"""What may follow the begin of a key, if the key goes on in the next line."""

_KEY_LINE = re.compile(
    r"(?:\[[^\]\r\n]{1,80}\]:?[ \t]{0,4}){0,3}[ \t\"'>|+(]{0,80}"
    r"(?:[A-Za-z0-9+/=]{0,200}+(?:\\{1,4}[nr])?[ \t\"',+)]{0,80}|(?:Proc-Type|DEK-Info|Version|Comment):[^\r\n]{0,200})"
)
"""A line of a private key (RFC 7468, RFC 1421), perhaps within a program's text or after a rank's prefix."""

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")


def redacted(text: str) -> str:
    """The text with every known kind of secret replaced by ``HIDDEN``."""
    return Redactor().text(text)


def _without_secrets(text: str) -> str:
    """The text without those secrets that are on one line."""
    lower = _lower(text)
    there = {literal for literal in _LITERALS if literal in lower}
    for pattern in PATTERNS if there else ():
        literals = [literal for literal in pattern.literals if literal in there]
        if literals and (changed := _replaced(pattern.expression, literals, text, lower)) is not None:
            text, lower = changed, _lower(changed)
    return text


def _lower(text: str) -> str:
    """The text in lower case, character by character: of all characters, only this one would become two."""
    return text.lower() if text.isascii() else text.replace("\u0130", "I").lower()


def _replaced(expression: re.Pattern[str], literals: list[str], text: str, lower: str) -> str | None:
    """The text with the matches at literals replaced; None: nothing was."""
    parts: list[str] = []
    end = 0
    for place in _places(literals, lower):
        found = expression.match(text, place) if place >= end else None
        if found is None or found["secret"].startswith(HIDDEN[:-1]):
            continue
        parts += [text[end : found.start("secret")], HIDDEN]
        end = found.end("secret")
    return "".join([*parts, text[end:]]) if parts else None


def _places(literals: list[str], lower: str) -> list[int]:
    found = [place for literal in literals for place in _occurrences(literal, lower)]
    return found if len(literals) == 1 else sorted(found)


def _occurrences(literal: str, lower: str) -> Iterator[int]:
    place = lower.find(literal)
    while place >= 0:
        yield place
        place = lower.find(literal, place + 1)


def redacted_values(value: Any) -> Any:
    """A JSON value in which the secrets of every text are replaced, names of fields aside."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_values(each) for each in value]
    return value


class Redactor:
    """Replaces secrets in a text that comes in parts, private keys of several lines included."""

    def __init__(self) -> None:
        self._key_lines = 0
        """Lines since the begin of a private key; 0: not in one."""

    def text(self, text: str) -> str:
        """The next lines, without their secrets; a line ends with ``\\n``, ``\\r`` or both."""
        if not self._key_lines and "PRIVATE KEY" not in text:
            return _without_secrets(text)
        return "".join(self._line(found[1]) + found[2] for found in _LINE.finditer(text) if found[0])

    def beginning(self, line: str) -> tuple[str, str]:
        """Divide a long line of which more is to come, where no secret is.

        Args:
            line: its next characters, more than twice ``OVERLAP_CHARS``.

        Returns:
            Its first characters without secrets, and the others unchanged: they belong before what comes next.
        """
        self._key_lines = 0
        whole = _without_secrets(line)
        for cut in range(len(line) - OVERLAP_CHARS, 0, -OVERLAP_CHARS):
            first = _without_secrets(line[:cut])
            if whole.startswith(first) and _without_secrets(line[cut:]) == whole[len(first) :]:
                return first, line[cut:]
        return HIDDEN, line[-OVERLAP_CHARS:]  # secrets all over

    def _line(self, line: str) -> str:
        if self._key_lines:
            end = _KEY_END.search(line)
            if end is not None:
                self._key_lines = 0
                before = HIDDEN if line[: end.start()].strip() else ""
                return before + end[0] + self._line(line[end.end() :])
            if self._key_lines <= KEY_LINES_MAX and _KEY_LINE.fullmatch(line) is not None:
                self._key_lines += 1
                return HIDDEN if line.strip() else line
            self._key_lines = 0
        hidden = _without_secrets(line)
        begin = next(reversed([*_KEY_BEGIN.finditer(hidden)]), None)
        self._key_lines = int(begin is not None and _KEY_REST.fullmatch(hidden, begin.end()) is not None)
        return hidden
