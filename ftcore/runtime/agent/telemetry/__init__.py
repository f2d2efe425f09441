"""Observations of workers and node that the agent reports."""
