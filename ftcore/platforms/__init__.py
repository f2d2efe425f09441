"""Platforms: where nodes come from. One adapter of ``ports.Platform`` for each (``adapters``)."""

from ftcore.platforms.adapters import LOCAL, abilities_of, check_url, open_platform, schemes

__all__ = ["LOCAL", "abilities_of", "check_url", "open_platform", "schemes"]
