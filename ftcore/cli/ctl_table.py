"""Tables that fit the terminal's width without cutting cells.

A cut cell is worse than a missing one: half an id may name another incident. If a table is too wide, the *flexible*
columns are folded onto several lines, down to ``FLEXIBLE_MIN``. Then *spare* columns are omitted, and a line below the
table lists them. A table that is still too wide is printed in full, and the terminal wraps its lines.
"""

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

FLEXIBLE_MIN = 17
"""Characters that a flexible column keeps while spare columns can be omitted: the longest policy name fits."""

GAP = 2


class Fitted(Table):
    """A table without lines; see the module's text.

    Args:
        headers, right, flexible, spare: as in ``ctl_output.table``.
    """

    def __init__(
        self, *headers: str, right: tuple[str, ...], flexible: tuple[str, ...], spare: tuple[str, ...]
    ) -> None:
        super().__init__(box=None, pad_edge=False, header_style="strong", padding=(0, GAP, 0, 0))
        self._spare = spare
        for header in headers:
            side: Any = "right" if header in right else "left"
            self.add_column(header, justify=side, no_wrap=header not in flexible, overflow="fold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, omitted = list(range(len(self.columns))), []
        widths = [self._natural(number) for number in shown]
        for header in self._spare:
            if self._least(shown, widths) <= options.max_width:
                break
            shown = [number for number in shown if self.columns[number].header != header]
            omitted.append(header)
        widths = self._folded(shown, widths, options.max_width)
        room = sum(widths[number] for number in shown) + GAP * (len(shown) - 1)
        yield from self._part(shown, widths).__rich_console__(console, options.update(width=room))
        if omitted:
            yield Text(f"(no room for {', '.join(omitted)}; --format json shows all)", style="quiet")

    def _part(self, shown: list[int], widths: list[int]) -> Table:
        """The table with these columns and widths."""
        part = Table(
            box=None, pad_edge=False, header_style="strong", padding=(0, GAP, 0, 0), show_header=self.show_header
        )
        for number in shown:
            column = self.columns[number]
            part.add_column(
                column.header,
                justify=column.justify,
                no_wrap=column.no_wrap,
                overflow=column.overflow,
                width=widths[number],
            )
        cells = [list(self.columns[number].cells) for number in shown]
        for row, style in zip(zip(*cells, strict=True), self.rows, strict=True):
            part.add_row(*row, style=style.style)
        return part

    def _natural(self, number: int) -> int:
        """Width of a column if nothing is folded."""
        column = self.columns[number]
        cells = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in column.cells]
        header = [Text(str(column.header))] if self.show_header else []
        return max((cell.cell_len for cell in (*header, *cells)), default=0)

    def _least(self, shown: list[int], widths: list[int]) -> int:
        """Total width if flexible columns are folded to ``FLEXIBLE_MIN``."""
        folded = (widths[n] if self.columns[n].no_wrap else min(widths[n], FLEXIBLE_MIN) for n in shown)
        return sum(folded) + GAP * (len(shown) - 1)

    def _folded(self, shown: list[int], widths: list[int], room: int) -> list[int]:
        """Widths that fit the room, if possible; a flexible column that needs less leaves more to the others."""
        widths = list(widths)
        flexible = sorted((n for n in shown if not self.columns[n].no_wrap), key=lambda n: widths[n])
        left = room - sum(widths[n] for n in shown if n not in flexible) - GAP * (len(shown) - 1)
        for rank, number in enumerate(flexible):
            widths[number] = min(widths[number], max(FLEXIBLE_MIN, left // (len(flexible) - rank)))
            left -= widths[number]
        return widths
