"""Presets: chains for known situations, as policy files that come with the package."""

from importlib import resources

from ftcore.policies.chain import DEFAULT_ORDER

DEFAULT = "default"
"""The chain of a job without a file; its order stands in ``chain.DEFAULT_ORDER``."""

_DEFAULT_DOC = "The chain of a job without a policy file: what costs least first, then restart, replace, shrink, end."
_FOLDER = resources.files("ftcore.policies") / "presets"


def names() -> tuple[str, ...]:
    """Every preset, ``default`` first."""
    found = sorted(path.name.removesuffix(".yaml") for path in _FOLDER.iterdir() if path.name.endswith(".yaml"))
    return (DEFAULT, *found)


def text(name: str) -> str:
    """The preset's policy file.

    Args:
        name: one of ``names()``.
    """
    if name == DEFAULT:
        entries = "\n".join(f"  - {policy}" for policy in DEFAULT_ORDER)
        return f"# {_DEFAULT_DOC}\n\nversion: 1\nchain:\n{entries}\n"
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def doc(name: str) -> str:
    """What the preset is for: the comment at its beginning, as one paragraph."""
    lines = []
    for line in text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(" ".join(lines).split())
