"""The folded state of a job and its transitions: machines as rows, the fold, world formation."""
