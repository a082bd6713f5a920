"""C text to machine code."""
