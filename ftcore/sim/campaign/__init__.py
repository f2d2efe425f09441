"""Campaigns: simulation of the engine alone over months of virtual time, with modeled nodes, machines and training."""
