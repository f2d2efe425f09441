"""Layouts of memory that processes of one node share: data and offsets, no torch, no I/O loop."""
