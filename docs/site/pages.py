"""What the site adds to the Markdown pages.

- Navigation: the lists of links in ``docs/README.md`` (and in ``docs/decisions/README.md``) are the site's table of
  contents. A heading there is a caption here; a list below an item is the part below that item's page.
- Drawings: a ``mermaid`` block becomes an SVG when the site is built, in the colours of the theme.
- Python API: the comment ``<!-- api: MODULE [NAME ...] -->`` becomes the reference of that module, from its docstrings.
- ``index.html`` leads to the first page.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mmdr
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HOME = "README"
INDEX = "docs/README"
LISTS = (INDEX, "docs/decisions/README")
"""Pages whose lists of links are navigation."""
ITEM = re.compile(r"^( *)- (.*)$")
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)\.md\)")
API = re.compile(r"^<!-- api: (\S+)((?: \w+)*) -->$", re.MULTILINE)
CODE_INDENT = " " * 4
NOT_CODE = re.compile(r"\w+:$|.*::$|[-*|.]")
"""Lines of a docstring whose indented block is a section, a literal block or a list."""
REDIRECT = f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={HOME}.html">\n'
NOT_SHOWN = re.compile(r"<style>.*?</style>|<defs/>| data-[a-z]+=\"[^\"]*\"| fill=\"(?:#|hsl)[^\"]*\"", re.DOTALL)
"""Parts of a rendered drawing that the site leaves out: ``site.css`` has the colours, for light and dark."""
SVG = re.compile(r'<svg id="merman" width="100%"(.*?) style="max-width:([\d.]+)px"')
SCALE, SCALE_MIN = 0.9, 0.65
"""Size of a drawing: where the page is wide enough, and where it is not and the drawing scrolls."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Add everything to Sphinx."""
    app.connect("source-read", _complete_page)
    app.connect("autodoc-process-docstring", _mark_code, priority=400)  # before napoleon reads the sections
    app.connect("autodoc-process-signature", _shorten)
    app.connect("doctree-read", _set_dashes)
    app.connect("build-finished", _write_index)
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _complete_page(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = API.sub(_api, source[0])
    for name in LISTS:
        app.env.note_dependency(f"{name}.md")
    parts = [part for name in LISTS for part in contents(Path(app.srcdir), name) if part.page == page]
    source[0] += "".join(part.directive() for part in parts)


class Part:
    """Entries of the navigation below one page, under one caption."""

    def __init__(self, page: str, caption: str = "") -> None:
        self.page = page
        self.caption = caption
        self.entries: list[str] = []

    def directive(self) -> str:
        """Return the toctree, in MyST's form."""
        caption = [f":caption: {self.caption}"] if self.caption else []
        return "\n".join(["", "```{toctree}", ":hidden:", *caption, "", *self.entries, "```", ""])


def contents(root: Path, page: str) -> Iterator[Part]:
    """Read the navigation that the lists of a page are.

    Args:
        root: the repository.
        page: its name, without ``.md``; the lists of the index belong to the first page of the site.
    """
    is_index = page == INDEX
    part = Part(HOME if is_index else page)
    if is_index:
        part.entries.append(f"All pages </{INDEX}>")
    below: dict[str, Part] = {}
    last = ""
    for line in (root / f"{page}.md").read_text().splitlines():
        if line.startswith("## ") and is_index:
            yield part
            part = Part(HOME, line.removeprefix("## "))
        item = ITEM.match(line)
        for title, target in LINK.findall(item[2]) if item else ():
            name = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            entry = f"{title.replace('`', '')} </{name}>"
            if item is not None and item[1]:
                below.setdefault(last, Part(last)).entries.append(entry)
            else:
                part.entries.append(entry)
                last = name
    yield part
    yield from below.values()


def _api(match: re.Match[str]) -> str:
    module, names = match[1], match[2].split()
    if not names:
        return f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```"
    lines = [f".. currentmodule:: {module}", ""]
    for name in names:
        kind = "autoclass" if name[0].isupper() else "autofunction"
        lines += [f".. {kind}:: {name}", *(["   :members:"] if kind == "autoclass" else []), ""]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _mark_code(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make an indented block of a docstring, outside of its sections, a block of code."""
    found: list[str] = []
    lead = ""  # the last line that was not indented
    for line in lines:
        indented = line.startswith(CODE_INDENT)
        if indented and found and not found[-1] and lead and not NOT_CODE.match(lead):
            found += [".. code-block:: python", ""]
            lead = ""
        if line and not indented:
            lead = line
        found.append(line)
    lines[:] = found


def _shorten(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Leave out the values of a default that is a record, and the marker of a default that is computed."""
    if arguments:
        arguments = re.sub(r"\b([A-Z]\w+)\([^()]*\)", r"\1()", arguments).replace(" = NOTHING", " = ...")
    return arguments, returns


def _set_dashes(app: Sphinx, doctree: nodes.document) -> None:
    """Set the dash between an argument and its meaning; ``smartquotes``, which would, spoils flags in the text."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


class Mermaid(SphinxDirective):
    """A drawing, as an SVG inside the page."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Render the block."""
        svg = drawing("\n".join(self.content), f"drawing-{self.env.new_serialno('drawing')}")
        return [nodes.raw("", f'<div class="drawing">{svg}</div>', format="html")]


def drawing(text: str, prefix: str) -> str:
    """Return a Mermaid text as SVG.

    Args:
        text: the source.
        prefix: stands before each id inside, so that drawings of one page do not share any.
    """
    svg = NOT_SHOWN.sub("", mmdr.render(text, backend="merman").svg())
    svg = SVG.sub(_resized, svg)
    return re.sub(r'(id="|url\(#)merman', rf"\1{prefix}", svg)


def _resized(found: re.Match[str]) -> str:
    width = float(found[2])
    return f'<svg{found[1]} width="{width * SCALE:.0f}" style="min-width:{width * SCALE_MIN:.0f}px"'


def _write_index(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(REDIRECT)
