"""``ftctl top``: a live view of a job on the terminal; see ``replay/live/`` for what it shows."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import Final

import attrs

from ftcore.cli.ctl_output import columns, paint, print_json, wants_colour
from ftcore.cli.ctl_store import opened
from ftcore.cli.top_screen import TopPage, plain, screen, scroll_max
from ftcore.cli.top_terminal import KeyTerminal
from ftcore.errors import NotFound, StoreError, Unreachable
from ftcore.launch.hints import hinted
from ftcore.launch.security import credentials
from ftcore.live.feed import LiveFeed
from ftcore.logs import default_store_url
from ftcore.replay.live import Links, LiveView
from ftcore.replay.live.reader import awaited_view, notices
from ftcore.replay.live.view import moment_text
from ftcore.runtime import tasks
from ftcore.runtime.observers import Observed
from ftcore.wording import printable

DRAW_EVERY_S: Final = 1.0
"""The clocks are redrawn that often."""

DRAW_AFTER_S: Final = 0.2
"""After an event, and least pause between two redraws."""

AGAIN_S: Final = 1.0
"""Pause before a log that cannot be opened is tried again."""

PIPE_WIDTH: Final = 100
"""Width of the screen if it is printed to a file or pipe."""

NODES_MAX: Final = 5000
"""Nodes on the page of nodes."""

EVENTS_MAX: Final = 200


async def top(args: argparse.Namespace) -> int:
    """Show the job until `q`, or once.

    Raises:
        NotFound, Unreachable, StoreError: with ``--once``: there is no such job, or its log cannot be read.
        UsageError: the store has several jobs, and none was named.
    """
    if args.link:
        return await _print_link(args)
    if args.once or args.format == "json" or not sys.stdout.isatty():
        return await _once(args)
    source = _Source(args)
    following = asyncio.create_task(source.run())
    dumb = args.plain or os.environ.get("TERM", "dumb") == "dumb"
    showing = asyncio.create_task(_narrate(source, args) if dumb else _Top(source, args).run())
    try:
        await asyncio.wait({following, showing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await tasks.end([following, showing])
    for task in (following, showing):
        if task.done() and not task.cancelled():
            task.result()
    return 0


async def _print_link(args: argparse.Namespace) -> int:
    """Print the address of the job's page, with the token that permits to read it."""
    from ftcore.live.page.access import page_link

    async with opened(args) as log:
        print(page_link(args.link, credentials(args.store, log.job).token))
    return 0


async def _once(args: argparse.Namespace) -> int:
    async with opened(args) as log:
        feed = LiveFeed(Observed(log, credentials(args.store, log.job)))
        await feed.catch_up()
        shown = feed.view(nodes=NODES_MAX if args.format == "json" else 50, events=EVENTS_MAX)
    if args.format == "json":
        print_json(shown.to_json())
        return 0
    colour = wants_colour()
    for line in screen(shown, TopPage(), columns() or PIPE_WIDTH, None, lambda text: hinted(text, args)):
        print("".join(paint(text, style, colour) for text, style in line).rstrip())
    return 0


class _Source:
    """The newest view of a job that may not exist yet, and whose log may go away and come back.

    Args:
        args: of the command.

    Attributes:
        changed: set at each change.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._feed: LiveFeed | None = None
        self._away: tuple[int, str] | None = None
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the job; ends when it can never be read."""
        while True:
            try:
                async with opened(self._args) as log:
                    observed = Observed(log, credentials(self._args.store, log.job))
                    feed = LiveFeed(observed)
                    feed.changed = self.changed
                    await self._follow(feed)
            except (NotFound, StoreError, Unreachable, OSError) as error:
                since = self._away[0] if self._away is not None else time.time_ns()
                self._away = since, str(error) or type(error).__name__
                self.changed.set()
            await asyncio.sleep(AGAIN_S)

    async def _follow(self, feed: LiveFeed) -> None:
        following = asyncio.create_task(feed.run())
        try:
            while not feed.has_read and not following.done():
                await asyncio.wait({following}, timeout=DRAW_AFTER_S)
                if self._feed is None:
                    self._feed = feed
            self._feed, self._away = feed, None
            await following
        finally:
            await tasks.end([following])

    def view(self, *, nodes: int, events: int) -> LiveView:
        """What is to be shown now."""
        now = time.time_ns()
        if self._feed is None:
            where = self._args.store or default_store_url()
            why = self._away[1] if self._away is not None else f"opening {where}"
            return awaited_view(self._args.job or "", f"{why}; trying again", now)
        view = self._feed.view(nodes=nodes, events=events)
        if self._away is None:
            return view
        lost = notices(Links(log_away=self._away[0], log_error=self._away[1]), now, ended=view.ended)
        return attrs.evolve(view, notices=lost)


class _Top:
    """The interactive screen."""

    def __init__(self, source: _Source, args: argparse.Namespace) -> None:
        self._source, self._args = source, args
        self._page = TopPage()
        self._quit = asyncio.Event()
        self._killed = False
        self._view = source.view(nodes=0, events=0)

    async def run(self) -> None:
        """Draw until a key ends it."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        terminal = KeyTerminal(colour=wants_colour(), on_key=self._key, on_resize=self._redraw)
        with terminal:
            while not self._quit.is_set():
                self._draw(terminal)
                await self._wait()
        loop.remove_signal_handler(signal.SIGTERM)
        if self._killed:
            os.kill(os.getpid(), signal.SIGTERM)  # the terminal is as it was: end as other programs do

    def _end(self) -> None:
        self._killed = True
        self._quit.set()
        self._redraw()

    def _redraw(self) -> None:
        self._source.changed.set()

    async def _wait(self) -> None:
        """Wait for the next redraw: soon after a change, else when the clocks go on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAW_EVERY_S):
                await self._source.changed.wait()
        self._source.changed.clear()
        if not self._quit.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAW_AFTER_S):
                    await self._quit.wait()

    def _draw(self, terminal: KeyTerminal) -> None:
        width, height = terminal.size()
        if not self._page.frozen:
            nodes = NODES_MAX if self._page.name == "nodes" else 50
            self._view = self._source.view(nodes=nodes, events=EVENTS_MAX)
        terminal.draw(screen(self._view, self._page, width, height, lambda text: hinted(text, self._args)))

    def _key(self, key: str) -> None:
        page, most = self._page, scroll_max(self._view, self._page)
        rows = max(1, KeyTerminal.size()[1] - 4)
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -rows, "page down": rows, "home": -most, "end": most}
        pages = {"m": "main", "escape": "main", "n": "nodes", "e": "events", "?": "keys", "h": "keys"}
        if key == "q":
            self._quit.set()
        elif key == " ":
            self._page = attrs.evolve(page, frozen=not page.frozen)
        elif key in pages:
            name = "main" if pages[key] == page.name else pages[key]
            self._page = attrs.evolve(page, name=name, scroll=0, frozen=False)
        elif key in moves:
            self._page = attrs.evolve(page, scroll=min(most, max(0, page.scroll + moves[key])))
        self._redraw()


async def _narrate(source: _Source, args: argparse.Namespace) -> None:
    """Print one screen, then a line for each event and each change, for a terminal that cannot move its cursor."""
    colour, shown, said = wants_colour(), 0, ""
    first = True
    while True:
        view = source.view(nodes=50, events=EVENTS_MAX)
        state = "; ".join([f"state: {view.state}", *(f"{row.name}: {row.text}" for row in view.notices)])
        key = "; ".join([view.state, *(row.name for row in view.notices)])
        if first and view.state != "waiting":
            first, said, shown = False, key, max((event.seq for event in view.newest_events), default=0)
            lines = screen(view, TopPage(), columns() or PIPE_WIDTH, None, lambda text: hinted(text, args))
            print("\n".join(plain(lines)), flush=True)
        elif key != said:
            said = key
            text = state if view.state != "waiting" else view.rows[0].text
            print(printable(f"{moment_text(view.time, view.time)} {hinted(text, args)}"), flush=True)
        for event in view.newest_events:
            if event.seq > shown:
                shown = event.seq
                text = printable(f"{moment_text(event.time, view.time)} {hinted(event.text, args)}")
                print(paint(text, event.tone, colour), flush=True)
        await asyncio.sleep(DRAW_EVERY_S)
