"""The engine: one fact in, one group of events out. Pure; the same code in production, replay and simulation."""
