"""A real Chromium without a window, driven over a pipe by its DevTools protocol, for tests of pages.

Without a Chromium (Debian package chromium) the tests are skipped; with FTCORE_REQUIRE_CHROMIUM=1 they fail.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 60.0
"""Seconds that one command may take; a busy machine needs a few."""


def binary() -> str:
    """The path of a Chromium."""
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        if os.environ.get("FTCORE_REQUIRE_CHROMIUM") == "1":
            pytest.fail("no Chromium, although FTCORE_REQUIRE_CHROMIUM=1: apt-get install chromium")
        pytest.skip("no Chromium: apt-get install chromium")
    return found


class Browser:
    """One page of a running Chromium.

    Attributes:
        requests: addresses that the page requested, its own included.
        problems: exceptions and messages of the console with level error.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.requests: list[str] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium did not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "Chromium has ended"
            self._buffer += piece
        data, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(data)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("exception", {}).get("description", params)))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def show(self, width: int, height: int = 900, *, theme: str = "light", media: str = "screen") -> None:
        """Set the size of the view and what the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        self.call(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": theme}]
        )

    def open(self, page: Path, fragment: str = "") -> None:
        """Open a report and wait until it is complete."""
        self.call("Page.navigate", url=f"{page.absolute().as_uri()}{fragment}")
        self.wait("location.protocol === 'file:' && document.documentElement.dataset.ready === 'true'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"].get("exception", {}).get("description", found))
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true; checked after each frame of the page."""
        deadline = time.monotonic() + LIMIT_S
        while not self.run(f"new Promise((done) => setTimeout(() => done(Boolean({condition})), 20))"):
            assert time.monotonic() < deadline, f"not true in {LIMIT_S:g} s: {condition}; {self.problems}"

    def press(self, key: str, text: str = "") -> None:
        """Press a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page, or of what is in view."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}} if whole else {}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def started(home: Path) -> Iterator[Browser]:
    """A running Chromium; ``home`` holds its profile."""
    ends, from_us = os.pipe()
    from_browser, starts = os.pipe()
    # The protocol reads file descriptor 3 and writes 4; the shell moves ours there, so they must be neither.
    to_browser, to_us = fcntl.fcntl(ends, fcntl.F_DUPFD, 20), fcntl.fcntl(starts, fcntl.F_DUPFD, 20)
    os.close(ends)
    os.close(starts)
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
    ]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={home}"]
    script = f'exec "$0" "$@" 3<&{to_browser} 4>&{to_us}'
    command = ["bash", "-c", script, binary(), *flags, "--remote-debugging-pipe"]
    with (home / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, pass_fds=(to_browser, to_us), stdout=log, stderr=log)
    os.close(to_browser)
    os.close(to_us)
    try:
        yield Browser(from_browser, from_us)
    finally:
        process.terminate()
        process.wait()
        os.close(from_browser)
        os.close(from_us)
