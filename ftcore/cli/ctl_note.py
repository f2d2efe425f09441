"""``ftctl note``: records a person's note in the log, for ``ftctl logbook``."""

import argparse
import sys

from ftcore.cli.ctl_output import print_json, say
from ftcore.cli.ctl_store import opened
from ftcore.errors import UsageError
from ftcore.wording import plural

STDIN = "-"


async def note(args: argparse.Namespace) -> int:
    """Record the note; wait until it is durable."""
    from ftcore.launch.note import add_note
    from ftcore.runtime.wire.client import whoami

    text = _text(args.text)
    async with opened(args) as log:
        who = whoami()
        seq = await add_note(log, args.store, text.strip(), who)
    if args.format == "json":
        print_json({"job": log.job, "seq": seq, "who": who, "text": text.strip()})
    else:
        say(f"{log.job}: the note ({plural(len(text.strip()), 'character')}) is recorded as event {seq}")
    return 0


def _text(given: str) -> str:
    """The text of the note.

    Raises:
        UsageError: it is not UTF-8.
    """
    try:
        text = sys.stdin.read() if given == STDIN else given
        text.encode()  # bytes of an argument that are not UTF-8 are lone surrogates (PEP 383)
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        where = "standard input" if given == STDIN else "TEXT"
        raise UsageError(f"{where} is not UTF-8 text: position {error.start}; write the note in UTF-8") from None
    return text
