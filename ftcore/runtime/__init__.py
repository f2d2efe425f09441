"""The rooms with threads, sockets, processes and wall time."""
