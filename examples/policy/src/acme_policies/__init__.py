"""Acme's extension of ftcore: a policy, and a rule for a line that Acme's machines print."""
