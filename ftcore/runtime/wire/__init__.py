"""The wire between agents, operators and the master: frames, and the gRPC service that carries them."""

TOKEN_ENV = "FTCORE_TOKEN"

WITHHELD = (TOKEN_ENV, "FTCORE_ETCD_PASSWORD")
"""Variables with secrets that workers do not inherit: scripts and their loggers like to print what they find."""
