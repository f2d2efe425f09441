"""The wire between agents, operators and the master: frames, and the gRPC service that carries them."""

from ftcore.runtime.wire.withheld import TOKEN_ENV, WITHHELD, without_secrets

__all__ = ["TOKEN_ENV", "WITHHELD", "without_secrets"]
