"""The compiled program, its serialized form, and the keys under which a build is cached."""
