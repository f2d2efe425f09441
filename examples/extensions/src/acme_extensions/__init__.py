"""Acme's machines lose power when their cooling air is too hot: an extension of ftcore of each kind."""
