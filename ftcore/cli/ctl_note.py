"""``ftctl note``: records a person's note in the log, for ``ftctl logbook``."""

import argparse
import sys

from ftcore.cli.ctl_output import print_json, say
from ftcore.cli.ctl_store import opened
from ftcore.wording import plural

STDIN = "-"


async def note(args: argparse.Namespace) -> int:
    """Record the note; wait until it is durable."""
    from ftcore.launch.note import add_note
    from ftcore.runtime.wire.client import whoami

    text = sys.stdin.read() if args.text == STDIN else args.text
    async with opened(args) as log:
        who = whoami()
        seq = await add_note(log, args.store, text.strip(), who)
    if args.format == "json":
        print_json({"job": log.job, "seq": seq, "who": who, "text": text.strip()})
    else:
        say(f"{log.job}: the note ({plural(len(text.strip()), 'character')}) is recorded as event {seq}")
    return 0
