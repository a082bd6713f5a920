"""The typed, immutable intermediate representation that every stage of the compiler shares."""
