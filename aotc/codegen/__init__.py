"""C code for a program: analysis, storage, loop nests and the freestanding C library."""
