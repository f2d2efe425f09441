"""Code with threads, sockets, processes and wall time: agent, master, their protocol, the warm process, checks."""
