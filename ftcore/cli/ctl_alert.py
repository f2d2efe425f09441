"""``ftctl alert``: sends a message to try out whom the policy ``alert`` would tell, in the way the master does."""

import argparse

from ftcore.cli.ctl_output import print_json, say
from ftcore.errors import UsageError

NOT_SENT = 1
"""Exit code if some target did not take the message."""

_HERE = {
    "the environment of the master": "the environment of this command",
    "on the master's host": "here",
    "where the master runs": "here",
}
"""What a master says of itself, and what it is for this command."""


async def alert(args: argparse.Namespace) -> int:
    """Send the message and say of each target what came of it."""
    from ftcore.policies.targets import shown, wrong_target
    from ftcore.runtime.alert import INSTALL, Message
    from ftcore.runtime.master.alerts import send

    for target in args.target:
        why = wrong_target(target)
        if why:
            raise UsageError(f"alert: {why}")
    message = Message(to=tuple(args.target), title="ftcore", text=args.text, severity="info")
    came = await send(message)
    if came.missing:
        raise UsageError(_here(INSTALL))
    failed = {number: _here(why) for number, why in came.failed.items()}
    told = [{"to": shown(to), "ok": n not in failed, "error": failed.get(n)} for n, to in enumerate(args.target)]
    if args.format == "json":
        print_json(told)
    for target in told if args.format != "json" else ():
        say(f"{target['to']}: sent" if target["ok"] else str(target["error"]))
    return NOT_SENT if failed else 0


def _here(text: str) -> str:
    for theirs, ours in _HERE.items():
        text = text.replace(theirs, ours)
    return text
