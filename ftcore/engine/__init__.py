"""The turning wheel: one fact in, one group of events out; pure, the same in production, replay and simulation."""
