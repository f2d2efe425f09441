"""The agent of a node: runs the workers and connects to the master."""
