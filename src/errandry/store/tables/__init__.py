"""The tables of a store: the protocol, and what SQL drivers share: rows, writes, SQL files, counters."""
