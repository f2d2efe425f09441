"""The wire between agents, operators and the master: frames, and the gRPC service that carries them."""
