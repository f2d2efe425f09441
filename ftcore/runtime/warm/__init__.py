"""The warm process: has done the heavy imports and forks workers that start at once."""
