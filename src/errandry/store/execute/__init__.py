"""What a pass does: apply commands to the tables of a store, by the rules of the core."""
