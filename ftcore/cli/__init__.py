"""Command lines: parsing and printing only; what is printed is computed elsewhere.

gRPC writes a line of its own to standard error for each handshake that fails, which is what our message is for. It
reads the variable when it is imported, which is after this.
"""

import os

QUIET = ("GRPC_VERBOSITY", "NONE")
"""Set for ftcore's own processes, unless the user did; workers do not inherit it."""

os.environ.setdefault(*QUIET)
