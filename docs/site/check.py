"""Checks the built site: every link inside it leads somewhere, and no page loads anything from elsewhere.

    python docs/site/check.py build/site

Exits with 1 and names each page with its broken links. Links to other sites are not followed.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements that a browser loads by itself, with the attribute that names what."""
NOT_LOADED = {"canonical", "index", "search", "next", "prev", "author", "copyright"}
"""Kinds of ``link`` that a browser does not load."""


class Page(HTMLParser):
    """One page: its anchors, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element names."""
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        named = given.get(LOADED.get(tag, ""))
        if named and given.get("rel") not in NOT_LOADED:
            self.loaded.append(named)


def broken(pages: dict[Path, Page]) -> Iterator[str]:
    """Yield a line for each link that leads nowhere, and for each thing loaded from elsewhere."""
    for path, page in pages.items():
        for url in page.links + page.loaded:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                if url in page.loaded and parts.scheme != "data":
                    yield f"{path}: loads {url}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            found = pages.get(target)
            if not target.exists() or (found is not None and unquote(parts.fragment) not in found.anchors):
                yield f"{path}: leads nowhere: {url}"


def main() -> int:
    """Check the folder that is named."""
    root = Path(sys.argv[1]).resolve()
    pages = {path: Page(path) for path in sorted(root.rglob("*.html"))}
    lines = [line.replace(f"{root}/", "") for line in broken(pages)]
    sheets = [path for path in root.rglob("*.css") if "url(http" in path.read_text() or "url(//" in path.read_text()]
    lines += [f"{path.relative_to(root)}: loads from elsewhere" for path in sheets]
    print("\n".join(lines) or f"{len(pages)} pages: no broken link, nothing loaded from elsewhere")
    return 1 if lines or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
