"""What should be done: the chain, its file, one policy to a module."""
