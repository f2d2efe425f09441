"""What a process shows to the others of a job."""

import sys

from ftcore.logs.stores import own_file
from ftcore.runtime.wire.security import CA_ENV, TOKEN_FILE_ENV, Security, from_environ


def credentials(store: str | None, job: str, *, make: bool = False) -> Security:
    """What this process shows to the others of a job; on one machine the token lies beside the log.

    Args:
        store: URL of the log store; None: the default one.
        job: the job.
        make: make the token of one machine if it is not there.

    Raises:
        UsageError: what the environment names cannot be used.
    """
    return from_environ(own=own_file(store, job, "token"), make=make)


def security_in_force(store: str, job: str, here: str, who: str) -> Security:
    """What this node shows to the others.

    Args:
        store: URL of the log store.
        job: the job.
        here: the address at which it may lead; empty: never.
        who: the program that warns that callers need no token; empty: no warning.

    Raises:
        UsageError: what the environment names cannot be used.
    """
    security = credentials(store, job, make=True)
    if security.tls is not None:
        security.tls.check(here)
    elif not security.token and who:
        print(
            f"{who}: neither {TOKEN_FILE_ENV} nor {CA_ENV} is set: whoever can reach a master's port can join "
            f"{job} and give it commands",
            file=sys.stderr,
        )
    return security
