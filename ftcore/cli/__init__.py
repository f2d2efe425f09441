"""Command lines: parsing and printing only; ``launch`` composes processes, other packages compute results."""
