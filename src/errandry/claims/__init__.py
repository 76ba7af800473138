"""What workers and claimers share: renewal of leases, heartbeats, upkeep, error reports."""
