"""The master role: sequences facts, decides, and sends orders. Any process can hold it; all its state is in the log."""
