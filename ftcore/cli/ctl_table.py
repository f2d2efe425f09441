"""Tables that fit the terminal, whatever its width, and cut nothing.

A cell that is cut is worse than one that is missing: half an id names another incident. So where a table is wider than
there is room, the *flexible* columns are folded onto several lines, down to ``FLEXIBLE_MIN``, and then *spare* columns
are left out, and a line below says which. What still does not fit is printed as wide as it is: the terminal breaks the
lines.
"""

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

FLEXIBLE_MIN = 17
"""Cells that a flexible column keeps while a spare one can be left out: the longest name of a policy fits."""

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
        there, left_out = list(range(len(self.columns))), []
        widths = [self._natural(number) for number in there]
        for header in self._spare:
            if self._least(there, widths) <= options.max_width:
                break
            there = [number for number in there if self.columns[number].header != header]
            left_out.append(header)
        widths = self._folded(there, widths, options.max_width)
        room = sum(widths[number] for number in there) + GAP * (len(there) - 1)
        yield from self._part(there, widths).__rich_console__(console, options.update(width=room))
        if left_out:
            yield Text(f"(no room for {', '.join(left_out)}; --format json has all)", style="quiet")

    def _part(self, there: list[int], widths: list[int]) -> Table:
        """The table of these columns, in these widths."""
        part = Table(
            box=None, pad_edge=False, header_style="strong", padding=(0, GAP, 0, 0), show_header=self.show_header
        )
        for number in there:
            column = self.columns[number]
            part.add_column(
                column.header,
                justify=column.justify,
                no_wrap=column.no_wrap,
                overflow=column.overflow,
                width=widths[number],
            )
        cells = [list(self.columns[number].cells) for number in there]
        for row, style in zip(zip(*cells, strict=True), self.rows, strict=True):
            part.add_row(*row, style=style.style)
        return part

    def _natural(self, number: int) -> int:
        """Cells that a column takes if nothing is folded."""
        column = self.columns[number]
        cells = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in column.cells]
        header = [Text(str(column.header))] if self.show_header else []
        return max((cell.cell_len for cell in (*header, *cells)), default=0)

    def _least(self, there: list[int], widths: list[int]) -> int:
        """Cells that these columns take if the flexible ones are folded as far as is sensible."""
        folded = (widths[n] if self.columns[n].no_wrap else min(widths[n], FLEXIBLE_MIN) for n in there)
        return sum(folded) + GAP * (len(there) - 1)

    def _folded(self, there: list[int], widths: list[int], room: int) -> list[int]:
        """The widths in which these columns fit, if they can: flexible ones that need less leave more to the others."""
        widths = list(widths)
        flexible = sorted((n for n in there if not self.columns[n].no_wrap), key=lambda n: widths[n])
        left = room - sum(widths[n] for n in there if n not in flexible) - GAP * (len(there) - 1)
        for rank, number in enumerate(flexible):
            widths[number] = min(widths[number], max(FLEXIBLE_MIN, left // (len(flexible) - rank)))
            left -= widths[number]
        return widths
