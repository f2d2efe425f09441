"""Helpers for the tests of those who build on ftcore: public, and as stable as the rest."""
