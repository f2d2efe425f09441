"""The protocol between agents, operators and the master: frames, handshake, and the gRPC transport."""

from ftcore.runtime.wire.secret_env import SECRET_VARIABLES, TOKEN_ENV, without_secrets

__all__ = ["TOKEN_ENV", "SECRET_VARIABLES", "without_secrets"]
