"""The warm process: it has the heavy imports done and forks workers that start at once."""
