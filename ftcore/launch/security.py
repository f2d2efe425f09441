"""Credentials of a process for the other processes of a job."""

import sys

from ftcore.logs.stores import own_file
from ftcore.runtime.wire.security import CA_ENV, TOKEN_FILE_ENV, Security, from_environ


def credentials(store: str | None, job: str, *, make: bool = False) -> Security:
    """The credentials of this process; for a job on one machine, the token is in a file beside the log.

    Args:
        store: URL of the log store; None for the default store.
        job: the job.
        make: create the token file if it is missing.

    Raises:
        UsageError: a file or variable of the environment cannot be used.
    """
    return from_environ(own=own_file(store, job, "token"), make=make)


def security_in_force(store: str, job: str, here: str, who: str) -> Security:
    """The credentials of this node; warns if callers need no token.

    Args:
        store: URL of the log store.
        job: the job.
        here: the address at which a master may run here; empty if none may.
        who: the program named in the warning; empty: no warning.

    Raises:
        UsageError: a file or variable of the environment cannot be used.
    """
    security = credentials(store, job, make=True)
    if security.tls is not None:
        security.tls.check(here)
    elif not security.token and who:
        print(
            f"{who}: neither {TOKEN_FILE_ENV} nor {CA_ENV} is set: any process that reaches the master's port can join "
            f"{job} and send it commands",
            file=sys.stderr,
        )
    return security
