"""The node's agent: it runs the workers and speaks to the master."""
