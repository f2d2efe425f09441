"""The version of the package, in its own module so that it can be imported without the public names."""

__version__ = "0.1.0"
