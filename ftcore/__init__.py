"""ftcore keeps large distributed PyTorch jobs training through faults."""

__version__ = "0.1.0"
