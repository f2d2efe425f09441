"""Command lines: parsing and printing only; what is printed is computed elsewhere, and processes are composed in
``launch``.
"""
