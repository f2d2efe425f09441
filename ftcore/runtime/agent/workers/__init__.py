"""The processes of a node (workers, the warm process, the guard) and their output."""
