"""Protocol simulator: the production runtime of one job in virtual time; see `simulation.py`."""
