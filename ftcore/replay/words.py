"""Words that many lines for people share."""

NOBODY = "nobody"
"""Who ended an incident that no policy took."""


def plural(count: int, noun: str, many: str = "") -> str:
    """A number with its noun, as ``1 event`` or ``2,000 events``.

    Args:
        count: how many.
        noun: for one.
        many: for several, where an s does not make it.
    """
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"
