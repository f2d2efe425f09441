"""The master role: sequencing facts, deciding, ordering. Any process may hold it; the log is its only memory."""
