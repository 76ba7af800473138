"""What a driver that runs the executor provides, and what such drivers share: rows, writes, SQL files, counters."""
