"""Words that many lines for people share."""

NOBODY = "nobody"
"""Who ended an incident that no policy took."""
