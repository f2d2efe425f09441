"""``ftctl alert``: sends a test message to targets of the policy ``alert``, with the code that the master uses."""

import argparse

from ftcore.cli.ctl_output import print_json, say
from ftcore.errors import UsageError

NOT_SENT = 1
"""Exit code if the message could not be sent to a target."""

_LOCAL_PHRASES = {
    "the environment of the master": "the environment of this command",
    "on the master's host": "here",
    "where the master runs": "here",
}
"""Phrases of the master's messages, and their equivalents for this command."""


async def alert(args: argparse.Namespace) -> int:
    """Send the message and print the result for each target."""
    from ftcore.policies.targets import shown, wrong_target
    from ftcore.runtime.alert import INSTALL, Message
    from ftcore.runtime.master.alerts import send

    for target in args.target:
        problem = wrong_target(target)
        if problem:
            raise UsageError(f"alert: {problem}")
    message = Message(to=tuple(args.target), title="ftcore", text=args.text, severity="info")
    result = await send(message)
    if result.missing:
        raise UsageError(_for_this_command(INSTALL))
    failed = {number: _for_this_command(error) for number, error in result.failed.items()}
    rows = [{"to": shown(to), "ok": n not in failed, "error": failed.get(n)} for n, to in enumerate(args.target)]
    if args.format == "json":
        print_json(rows)
    for row in rows if args.format != "json" else ():
        say(f"{row['to']}: sent" if row["ok"] else str(row["error"]))
    return NOT_SENT if failed else 0


def _for_this_command(text: str) -> str:
    for masters, local in _LOCAL_PHRASES.items():
        text = text.replace(masters, local)
    return text
