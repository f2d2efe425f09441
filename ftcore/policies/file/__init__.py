"""The policy file: parse, validate and write it."""
