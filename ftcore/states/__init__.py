"""What is true and what may follow: machines as rows, the fold, world formation."""
