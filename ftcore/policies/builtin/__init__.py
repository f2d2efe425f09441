"""The policies that come with ftcore, one to a module."""
