"""Child processes for handlers that may block, crash or be killed."""
