"""The pure part: records, the table of moves, retries, queries, commands and events.

Nothing in this package does I/O, reads a clock or draws a random number.
"""
