"""``ftctl alert``: sends a message to try out whom the policy ``alert`` would tell, in the way the master does."""

import argparse

from ftcore.cli.ctl_output import print_json, say
from ftcore.errors import UsageError

NOT_SENT = 1
"""Exit code if some target did not take the message."""


async def alert(args: argparse.Namespace) -> int:
    """Send the message and say of each target what came of it."""
    from ftcore.policies.targets import shown
    from ftcore.runtime.alert import INSTALL, Message
    from ftcore.runtime.master.alerts import send

    message = Message(to=tuple(args.target), title="ftcore", text=args.text, severity="info")
    came = await send(message)
    if came.missing:
        raise UsageError(INSTALL.replace("where the master runs", "here"))
    told = [
        {"to": shown(to), "ok": n not in came.failed, "error": came.failed.get(n)} for n, to in enumerate(args.target)
    ]
    if args.format == "json":
        print_json(told)
    for target in told if args.format != "json" else ():
        say(f"{target['to']}: sent" if target["ok"] else str(target["error"]))
    return NOT_SENT if came.failed else 0
