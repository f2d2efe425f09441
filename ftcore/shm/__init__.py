"""Layouts of what processes of one node share in memory: data and offsets, no torch, no I/O loop."""
