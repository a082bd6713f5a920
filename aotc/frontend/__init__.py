"""From PyPTO source to what the compiler works on; sources are parsed, never run."""
