"""Simulators of the production engine in virtual time, at two levels of detail: campaign and protocol."""
