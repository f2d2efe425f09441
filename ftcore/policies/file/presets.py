"""Presets: chains for common situations, as policy files in the package."""

from importlib import resources

from ftcore.policies.chain import DEFAULT_ORDER

DEFAULT = "default"
"""The chain of a job without a policy file; ``chain.DEFAULT_ORDER`` has its order."""

_DEFAULT_DOC = (
    "The chain of a job without a policy file: the cheapest remedies first, then replace, restart, shrink and stop."
)
_FOLDER = resources.files("ftcore.policies.file") / "presets"


def names() -> tuple[str, ...]:
    """The names of all presets, ``default`` first."""
    found = sorted(path.name.removesuffix(".yaml") for path in _FOLDER.iterdir() if path.name.endswith(".yaml"))
    return (DEFAULT, *found)


def text(name: str) -> str:
    """The policy file of a preset.

    Args:
        name: one of ``names()``.
    """
    if name == DEFAULT:
        entries = "\n".join(f"  - {policy}" for policy in DEFAULT_ORDER)
        return f"# {_DEFAULT_DOC}\n\nversion: 1\nchain:\n{entries}\n"
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def doc(name: str) -> str:
    """The description of a preset: the comment at the top of its file, as one paragraph."""
    lines = []
    for line in text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(" ".join(lines).split())
