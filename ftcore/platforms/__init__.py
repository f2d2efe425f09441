"""Platforms, which launch nodes: the local platform, and adapters of other packages (``adapters``)."""

from ftcore.platforms.adapters import LOCAL, PlatformAdapter, abilities_of, check_url, open_platform, schemes

__all__ = ["LOCAL", "PlatformAdapter", "abilities_of", "check_url", "open_platform", "schemes"]
