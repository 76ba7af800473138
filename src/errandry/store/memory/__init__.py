"""The memory store: the reference implementation. Nothing survives the process."""
