"""``ftctl completion``."""

import argparse


async def completion(args: argparse.Namespace) -> int:
    """Print the completion script of a shell."""
    import argcomplete

    print(argcomplete.shellcode(["ftctl"], shell=args.shell))
    return 0
