"""What a program does that holds claims: renew leases, send heartbeats, run upkeep."""
