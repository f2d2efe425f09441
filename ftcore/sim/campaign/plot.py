"""Plot of a campaign as SVG: cumulative goodput over the days, and lost time by cause.

Plain SVG 1.1 without scripts or fonts. The palette is safe for colour-blind readers (Okabe and Ito), and the legend has
the share of every area, so the plot can be read without colours.
"""

from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from ftcore.replay.spans import PRODUCTIVE, USES

WIDTH, HEIGHT = 900, 460
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 60, 210, 44, 40, 40
_UPPER = 130
_COLOURS = dict(
    zip(
        USES,
        (
            "#009e73",
            "#56b4e9",
            "#d55e00",
            "#8c564b",
            "#e69f00",
            "#f7c873",
            "#fbe3b8",
            "#f0e442",
            "#cc79a7",
            "#999999",
            "#0072b2",
        ),
        strict=True,
    )
)

Curve = Sequence[tuple[float, dict[str, float]]]


def plot(title: str, curve: Curve, nodes: int, note: str = "") -> str:
    """The text of the SVG file.

    Args:
        title: title of the plot.
        curve: day, and node-seconds by cause up to then; the last entry is the end.
        nodes: number of nodes of the job.
        note: assumption to show above the plot and in the first line of the file; may be empty.
    """
    points = [(day, ledger, day * 86400.0 * nodes) for day, ledger in curve if day > 0 and ledger]
    days = points[-1][0]
    causes = [cause for cause in USES if cause != PRODUCTIVE and points[-1][1][cause] > 0]
    top = max((sum(ledger[cause] for cause in causes) / total for _, ledger, total in points), default=0.0) or 0.01
    lower_top = _TOP + _UPPER + _GAP
    lower = HEIGHT - _BOTTOM - lower_top

    def x(day: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * day / days

    goodput = [(x(day), _TOP + _UPPER * (1 - ledger[PRODUCTIVE] / total)) for day, ledger, total in points]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
        + (f"<desc>{escape(note)}</desc>" if note else ""),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *([f'<text x="{_LEFT}" y="11" font-size="11" fill="#d55e00">{escape(note)}</text>'] if note else []),
        f'<text x="{_LEFT}" y="{26 if note else 22}" font-size="15">{escape(title)}</text>',
        *_axis(_TOP, _UPPER, 1.0, "goodput so far"),
        f'<polyline fill="none" stroke="{_COLOURS[PRODUCTIVE]}" stroke-width="2" points="{_path(goodput)}"/>',
        *_axis(lower_top, lower, top, "lost so far, by cause"),
    ]
    below = [0.0] * len(points)
    for cause in causes:
        above = [base + ledger[cause] / total for base, (_, ledger, total) in zip(below, points, strict=True)]
        upper = [(x(p[0]), lower_top + lower * (1 - share / top)) for p, share in zip(points, above, strict=True)]
        under = [(x(p[0]), lower_top + lower * (1 - share / top)) for p, share in zip(points, below, strict=True)]
        outline = _path([*upper, *reversed(under)])
        parts.append(f'<polygon fill="{_COLOURS[cause]}" stroke="white" stroke-width="0.3" points="{outline}"/>')
        below = above
    parts += [*_days(days, x), *_legend(points[-1][1], points[-1][2], causes, lower_top), "</svg>"]
    return "\n".join(parts) + "\n"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{across:.1f},{down:.1f}" for across, down in points)


def _axis(top: float, height: float, highest: float, label: str) -> list[str]:
    right = WIDTH - _RIGHT
    lines = [f'<text x="{_LEFT}" y="{top - 6}" fill="#444">{label}</text>']
    for part in range(5):
        value = highest * part / 4
        down = top + height * (1 - part / 4)
        lines.append(f'<line x1="{_LEFT}" x2="{right}" y1="{down:.1f}" y2="{down:.1f}" stroke="#ddd"/>')
        digits = 0 if highest > 0.1 else 1 if highest > 0.01 else 2
        lines.append(f'<text x="{_LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{value * 100:.{digits}f}%</text>')
    return lines


def _days(days: float, x: Callable[[float], float]) -> list[str]:

    lines = []
    for part in range(7):
        day = days * part / 6
        text = f"{day:.0f}" if days >= 12 else f"{day:.3g}"
        lines.append(f'<text x="{x(day):.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{text}</text>')
    lines.append(f'<text x="{x(days / 2):.1f}" y="{HEIGHT - 6}" text-anchor="middle" fill="#444">days</text>')
    return lines


def _legend(ledger: dict[str, float], total: float, causes: Sequence[str], lower_top: float) -> list[str]:
    across = WIDTH - _RIGHT + 16
    entries = [(PRODUCTIVE, float(_TOP + 14))]
    entries += [(cause, lower_top + 14.0 + 22 * number) for number, cause in enumerate(reversed(causes))]
    lines = []
    for cause, down in entries:
        lines.append(f'<rect x="{across}" y="{down - 10}" width="12" height="12" fill="{_COLOURS[cause]}"/>')
        share = ledger[cause] / total * 100
        lines.append(f'<text x="{across + 18}" y="{down}">{cause} {share:.2f}%</text>')
    return lines
