"""Where jobs are kept: the contract, the committer in front of it, and the drivers."""
