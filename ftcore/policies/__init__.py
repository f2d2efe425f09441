"""The policy chain, the policy file, and one module per built-in policy."""
