"""Many programs at once: processes, what is up to date and why, reproduction elsewhere."""
