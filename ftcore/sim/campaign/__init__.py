"""Campaigns: the engine alone over months of virtual time, with made-up nodes, machines and training."""
