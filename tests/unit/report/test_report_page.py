"""The page of a report, in a real Chromium: it loads nothing, runs nothing of the log, and works by keyboard."""

import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from chromium import Browser, started
from report_logs import HOSTILE, eventful, hostile

from ftcore.cli.ctl_lines import style_of, summary
from ftcore.events.envelope import Event
from ftcore.replay import read
from ftcore.replay.report import ReportReader
from ftcore.report import UPLOT_SHA256, UPLOT_VERSION, page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def written(path: Path, events: list[Event]) -> Path:
    reader = ReportReader(summary, style_of)
    read(events, reader)
    path.write_bytes(page(reader.report("demo"), reader.events()))
    return path


def shown(browser: Browser, path: Path, width: int = 1400, *, theme: str = "light", fragment: str = "") -> None:
    browser.requests.clear()
    browser.problems.clear()
    browser.show(width, theme=theme)
    browser.open(path, fragment)
    assert browser.problems == []
    assert [address for address in browser.requests if not address.startswith(f"{path.as_uri()}")] == []


def test_library_is_the_published_one() -> None:
    assets = files("ftcore.report").joinpath("assets")
    for name, digest in UPLOT_SHA256.items():
        assert hashlib.sha256(assets.joinpath(name).read_bytes()).hexdigest() == digest
    assert f"(v{UPLOT_VERSION})" in assets.joinpath("uPlot.iife.min.js").read_text()[:300]
    assert "MIT" in assets.joinpath("uPlot.LICENSE").read_text()


def test_page_refers_to_nothing(tmp_path: Path) -> None:
    """No script of the page can insert markup or request anything, and its policy forbids both."""
    text = written(tmp_path / "a.html", eventful().events).read_text()
    assert re.findall(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)\s*=""", text) == []
    assert "default-src &#x27;none&#x27;" in text and "unsafe" not in text
    own = "".join(
        each.read_text() for each in files("ftcore.report").joinpath("assets").iterdir() if each.name.endswith(".js")
    )
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|fetch\(|XMLHttp|WebSocket", own
    )


def test_text_of_the_log_is_never_markup(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path / "hostile.html", hostile().events)
    assert path.read_text().count("</script>") == 3  # two blocks of data, one script
    shown(browser, path)
    assert browser.run("document.title") != "owned"
    assert browser.run("document.querySelectorAll('img').length") == 0
    seen = browser.run("document.querySelector('.message').textContent")
    assert seen.startswith(HOSTILE.partition("\x1b")[0]) and "\x1b" not in seen and "\u202e" not in seen


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")])
def test_fits_and_draws(browser: Browser, tmp_path: Path, width: int, theme: str) -> None:
    shown(browser, written(tmp_path / "a.html", eventful().events), width, theme=theme)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.documentElement.dataset.theme") == theme
    assert browser.run("document.querySelectorAll('.uplot canvas').length") >= 5
    assert browser.run(PAINTED) is True


PAINTED = """[...document.querySelectorAll('canvas')].every((each) => {
  const data = each.getContext('2d').getImageData(0, 0, each.width, each.height).data;
  return data.some((value) => value !== 0);
})"""


def test_reading_order_and_names(browser: Browser, tmp_path: Path) -> None:
    """A screen reader meets the answers first, and each control and drawing has a name."""
    shown(browser, written(tmp_path / "a.html", eventful().events))
    heads = browser.run("[...document.querySelectorAll('h1, main h2')].map((each) => each.textContent)")
    assert heads[:5] == ["demo", "What happened?", "What was done?", "What did it cost?", "Will it happen again?"]
    nameless = browser.run(
        "[...document.querySelectorAll('button, select, input, [role=img], [role=table], [role=region]')]"
        ".filter((each) => !(each.getAttribute('aria-label') || each.textContent.trim() || each.closest('label')))"
        ".length"
    )
    assert nameless == 0


def test_search_and_keyboard(browser: Browser, tmp_path: Path) -> None:
    driver = eventful()
    shown(browser, written(tmp_path / "a.html", driver.events))
    browser.run("document.querySelector('[aria-label=\"Search events\"]').focus()")
    browser.call("Input.insertText", text="rank 2")
    wanted = sum("rank 2" in f"{event.type} {event.source} {summary(event)}".lower() for event in driver.events)
    browser.wait(f"document.querySelector('#events .vbody').getAttribute('aria-rowcount') === '{wanted}'")
    browser.run("document.querySelector('#events .vbody').focus()")
    browser.press("ArrowDown")
    browser.press("Enter", "\r")
    browser.wait("document.querySelector('#events .detail pre') !== null")
    browser.run("document.querySelector('.timeline').focus()")
    browser.press("+", "+")
    assert browser.run("range[1] - range[0] < 0.7 * (END - BEGIN)") is True
    browser.press("ArrowRight")
    browser.press("0", "0")
    assert browser.run("range[0] === BEGIN && range[1] === END") is True


def test_link_opens_an_incident(browser: Browser, tmp_path: Path) -> None:
    shown(browser, written(tmp_path / "a.html", eventful().events), fragment="#i1")
    assert browser.run("document.querySelector('#incident h3').textContent").startswith("i1: ")
    browser.run(
        "[...document.querySelectorAll('#incident button')]"
        ".find((each) => each.textContent === 'show its events').click()"
    )
    assert browser.run("document.querySelector('[aria-label=\"Incident, as i2\"]').value") == "i1"


def test_tree_of_causes_is_nested(browser: Browser, tmp_path: Path) -> None:
    """Each event is in the list below the one that it follows from."""
    driver = eventful()
    shown(browser, written(tmp_path / "a.html", driver.events), fragment="#i1")
    reader = ReportReader(summary, style_of)
    read(driver.events, reader)
    rows = reader.report("demo")["pages"]["i1"]["tree"]["rows"]
    depths = browser.run(
        "[...document.querySelectorAll('.tree li')].map((each) => {"
        "  let depth = -1; for (let up = each; up && !up.classList.contains('incident'); up = up.parentElement)"
        "    depth += up.tagName === 'OL'; return depth; })"
    )
    assert depths == [depth for _, depth, *_ in rows] and max(depths) > 1


def test_print(browser: Browser, tmp_path: Path) -> None:
    shown(browser, written(tmp_path / "a.html", eventful().events), theme="dark")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.show(1400, theme="dark", media="print")
    assert browser.run("document.documentElement.dataset.theme") == "light"
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("document.documentElement.dataset.theme") == "dark"


def test_empty_log(browser: Browser, tmp_path: Path) -> None:
    shown(browser, written(tmp_path / "empty.html", []))
    assert "No run was submitted yet" in browser.run("document.body.innerText")


def test_many_events_are_a_few_rows(browser: Browser, tmp_path: Path) -> None:
    """However many events there are, the page holds only those in view."""
    driver = eventful()
    reader = ReportReader(summary, style_of)
    read(driver.events, reader)
    events = reader.events()
    times = 100_000 // len(driver.events) + 1
    words = events.pop("words")
    many = {name: column * times for name, column in events.items()} | {"words": words}
    path = tmp_path / "many.html"
    path.write_bytes(page(reader.report("demo"), many))
    shown(browser, path)
    total = len(many["seq"])
    assert total >= 100_000
    assert browser.run("document.querySelector('#events .vbody').getAttribute('aria-rowcount')") == str(total)
    browser.run("document.querySelector('#events .vbody').focus()")
    browser.press("End")
    browser.wait(f"document.querySelector('#events [aria-rowindex=\"{total}\"]') !== null")
    assert browser.run("document.querySelectorAll('#events .vbody .vrow').length") < 60
