"""The stream to the master, and the outbox of unacknowledged facts."""
