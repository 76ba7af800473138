"""Programs that write parts of the documentation from the code."""
