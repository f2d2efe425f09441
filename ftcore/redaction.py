"""Secrets in text that is going to be shared: output of workers, command lines, messages.

``PATTERNS`` is the whole knowledge: each entry finds one kind of secret, and the group ``secret`` of its expression is
replaced. What stays shows which kind it was and where, so a reader knows that a token was there.

House rules: pure. Every repetition is bounded or over one character class, so the time is linear in the text. Numbers
alone are never secrets: training logs count tokens. This is a safety net, not a proof: an unknown kind of secret stays.
"""

import re
from typing import Final

import attrs

HIDDEN: Final = "[redacted]"
"""What stands for a secret."""


@attrs.frozen
class SecretPattern:
    """One kind of secret.

    Args:
        name: what it is.
        expression: a regular expression with a group ``secret``.
    """

    name: str
    expression: re.Pattern[str]


def _pattern(name: str, expression: str, flags: re.RegexFlag = re.NOFLAG) -> SecretPattern:
    return SecretPattern(name, re.compile(expression, flags))


_NAMES = r"(?:secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|auth)"
_VALUE = r"(?![0-9.,+-]+(?![A-Za-z0-9_/+=~.:-]))[A-Za-z0-9_./+=~:%@!#$^&*-]"
"""The first character of a value that is not a plain number, and the characters of a value."""

PATTERNS: Final = (
    _pattern("password in a URL", r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@'\"]{0,200}:(?P<secret>[^\s/@'\"]{1,500})@"),
    _pattern("user name in a URL that may be a token", r"https?://(?P<secret>[A-Za-z0-9_-]{20,500})@"),
    _pattern(
        "parameter of a URL",
        r"[?&](?:[A-Za-z0-9_.-]{0,30}(?:token|key|secret|password|signature|credential)|sig)=(?P<secret>[^\s&'\"#]{1,4000})",
        re.IGNORECASE,
    ),
    _pattern(
        "authorization header",
        r"\b(?:proxy-)?authorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:(?:bearer|basic|token|digest|negotiate)\s{1,4})?"
        r"(?P<secret>[^\s'\",;]{4,8000})",
        re.IGNORECASE,
    ),
    _pattern("bearer token", r"\bbearer\s{1,4}(?P<secret>[A-Za-z0-9_.~+/=-]{12,8000})", re.IGNORECASE),
    _pattern("cookie header", r"\b(?:set-)?cookie['\"]?\s{0,4}:\s{0,4}(?P<secret>[^\r\n]{4,8000})", re.IGNORECASE),
    _pattern(
        "AWS access key", r"(?<![A-Za-z0-9])(?P<secret>(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA)[A-Z0-9]{16})(?![A-Za-z0-9])"
    ),
    _pattern("Hugging Face token", r"(?<![A-Za-z0-9])(?P<secret>(?:hf|api_org)_[A-Za-z0-9]{20,200})"),
    _pattern("GitHub token", r"(?<![A-Za-z0-9])(?P<secret>(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,255})"),
    _pattern("GitLab token", r"(?<![A-Za-z0-9])(?P<secret>gl(?:pat|rt|dt)-[A-Za-z0-9_-]{16,200})"),
    _pattern("Slack token", r"(?<![A-Za-z0-9])(?P<secret>xox[a-z]-[A-Za-z0-9-]{10,250})"),
    _pattern("Slack webhook", r"hooks\.slack\.com/(?:services|workflows)/(?P<secret>[A-Za-z0-9/_-]{8,250})"),
    _pattern("key of an API", r"(?<![A-Za-z0-9])(?P<secret>sk-[A-Za-z0-9_-]{20,250})"),
    _pattern("Google API key", r"(?<![A-Za-z0-9])(?P<secret>AIza[A-Za-z0-9_-]{35})"),
    _pattern(
        "JSON web token",
        r"(?<![A-Za-z0-9])(?P<secret>eyJ[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{0,8000})",
    ),
    _pattern(
        "named password",
        r"(?<![A-Za-z0-9])[A-Za-z0-9_.-]{0,40}(?:password|passwd|passphrase)['\"]?\]?\s{0,3}[:=]\s{0,3}"
        r"['\"]?(?!None\b|null\b|True\b|False\b)(?P<secret>[^\s'\",;)}\]]{3,8000})",
        re.IGNORECASE,
    ),
    _pattern(
        "named value",
        rf"(?<![A-Za-z0-9])[A-Za-z0-9_.-]{{0,40}}{_NAMES}['\"]?\]?\s{{0,3}}[:=]\s{{0,3}}['\"]?"
        rf"(?P<secret>{_VALUE}{{6,8000}})",
        re.IGNORECASE,
    ),
    _pattern(
        "value of an option",
        rf"--[A-Za-z0-9-]{{0,40}}(?:{_NAMES}|password)[ =]['\"]?(?P<secret>{_VALUE}{{6,8000}})",
        re.IGNORECASE,
    ),
)
"""What is replaced, in this order."""

_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_KEY_END = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_HINT = re.compile(
    r"://|[?&=:]|bearer|AKIA|ASIA|AROA|AIDA|AGPA|ANPA|hf_|api_org_|gh[pousr]_|github_pat|gl[prd]t?-|glpat|xox|hooks\.slack|"
    r"sk-|AIza|eyJ|--",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """The text with every known kind of secret replaced by ``HIDDEN``."""
    if _HINT.search(text) is None:
        return text
    for pattern in PATTERNS:
        text = pattern.expression.sub(_hide, text)
    return text


def _hide(found: re.Match[str]) -> str:
    secret = found["secret"]
    if secret.startswith(HIDDEN[:-1]):
        return found[0]
    begin, end = found.start("secret") - found.start(), found.end("secret") - found.start()
    return found[0][:begin] + HIDDEN + found[0][end:]


class Redactor:
    """Replaces secrets in the lines of one file, private keys of several lines included."""

    def __init__(self) -> None:
        self._in_key = False

    def line(self, text: str) -> str:
        """The next line."""
        if self._in_key:
            if _KEY_END.search(text) is None:
                return HIDDEN
            self._in_key = False
            return text
        if _KEY_BEGIN.search(text) is not None and _KEY_END.search(text) is None:
            self._in_key = True
            return text
        return redacted(text)
