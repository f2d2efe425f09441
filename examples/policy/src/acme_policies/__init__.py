"""What Acme's machines need of ftcore: one policy, and the rule that knows a line of their own."""
