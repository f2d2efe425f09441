"""The version of the package; a module of its own, so that what needs it does not import the package's public names."""

__version__ = "0.1.0"
