"""The live page in a real Chromium: runs nothing of the log, asks for its token, connects again, fits a phone."""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from chromium import Browser, started

from ftcore.ids import SECOND
from ftcore.live.page.server import PageServer
from ftcore.live.page.streams import Board
from ftcore.replay.live import Links, LiveReader
from ftcore.testing.driver import JobDriver

TOKEN = "the-token-of-the-page"
EVIL = "RuntimeError: <img src=x onerror='window.evil=1'><script>window.evil=1</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("chromium")) as found:
        yield found


class Site:
    """A page with a job that has an open incident."""

    def __init__(self, token: str = "") -> None:
        self.driver = JobDriver(nodes=4, slots=2, tick_s=0.02)
        self.driver.start()
        self.driver.make_steps(9)
        self.driver.fail("node1", message=EVIL)
        self.reader = LiveReader("demo")
        self.token = token
        self.port = 0
        self.start()

    def start(self) -> None:
        self.board = Board()
        self.server = PageServer("127.0.0.1", self.port, self.board, tokens=(self.token,) if self.token else ())
        self.port = self.server.port

    def publish(self, later_s: float = 0, links: Links | None = None) -> None:
        for event in self.driver.events[self.reader.state.seq :]:
            self.reader.feed(event)
        view = self.reader.view(self.driver.events[-1].time + int(later_s * SECOND), links)
        self.board.publish(view.last_seq, msgspec.json.encode(view.to_json()))


def text(browser: Browser, name: str) -> str:
    return str(browser.run(f"document.getElementById('{name}').textContent"))


def opened(browser: Browser, site: Site, fragment: str = "") -> None:
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=f"http://127.0.0.1:{site.port}/{fragment}")
    browser.wait("document.readyState === 'complete' && location.host")


def showing(browser: Browser, site: Site, condition: str, later_s: float = 0, links: Links | None = None) -> None:
    """Publish until the page shows it: the first view may be published before the page listens."""
    for _ in range(500):
        site.publish(later_s, links)
        if browser.run(f"new Promise((done) => setTimeout(() => done(Boolean({condition})), 20))"):
            return
    raise AssertionError(f"{condition}; {browser.problems}")


def test_text_of_the_log_is_text(browser: Browser) -> None:
    """Markup in a message is shown as it is and runs nothing; nothing is loaded from elsewhere."""
    site = Site()
    browser.requests.clear()
    opened(browser, site)
    showing(browser, site, "!document.getElementById('incident').hidden")
    assert EVIL in text(browser, "incident-summary") and EVIL in text(browser, "events")
    assert browser.run("window.evil === undefined && document.images.length === 0") is True
    assert {url.partition("127.0.0.1")[0] for url in browser.requests if url != "about:blank"} <= {"http://", "data:,"}
    site.server.close()


def test_it_fits_and_can_be_heard(browser: Browser) -> None:
    """No sideways scrolling on a phone; a screen reader hears of events and states, not of running clocks."""
    site = Site()
    opened(browser, site)
    for width in (1400, 390):
        browser.show(width, theme="dark")
        showing(browser, site, "!document.getElementById('incident').hidden")
        assert browser.run("document.documentElement.scrollWidth") <= width
    watched = "document.getElementById('announcer'), {childList: true, characterData: true, subtree: true}"
    browser.run(f"window.heard = 0; new MutationObserver(() => window.heard++).observe({watched})")
    running = "document.querySelector('#phases .running').textContent"
    before = browser.run(running)
    showing(browser, site, f"{running} !== {before!r}", later_s=7)
    assert browser.run("window.heard") == 0
    site.driver.settle()
    showing(browser, site, "document.getElementById('incident').hidden")
    assert "Incident i1 is closed" in text(browser, "announcer")
    assert browser.run("document.querySelector('[aria-live=polite]').id") == "announcer"
    showing(browser, site, "document.querySelector('#notices .bad')", links=Links(log_away=1, log_error="gone"))
    assert text(browser, "notices").startswith("log store: unreachable since")
    site.server.close()


def test_it_asks_for_its_token_and_forgets_no_view(browser: Browser) -> None:
    """Without a token it asks; the token leaves the address bar; when the server is gone it says since when."""
    site = Site(TOKEN)
    opened(browser, site)
    browser.wait("!document.getElementById('asking').hidden")
    browser.run("document.getElementById('token').value = 'wrong'; document.querySelector('button').click()")
    browser.wait("!document.getElementById('refused').hidden")
    assert browser.run("document.getElementById('main').hidden") is True
    opened(browser, site, f"#token={TOKEN}")
    showing(browser, site, "!document.getElementById('main').hidden")
    assert TOKEN not in browser.run("location.href")
    site.server.close()
    browser.wait("!document.getElementById('connection').hidden")
    assert "No connection since" in text(browser, "connection") and EVIL in text(browser, "incident-summary")
    site.start()
    showing(browser, site, "document.getElementById('connection').hidden")
    site.server.close()
