"""Public helpers for tests of policies, platforms and tools built on ftcore; as stable as the rest of the API."""
