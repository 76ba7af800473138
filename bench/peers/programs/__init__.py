"""One file for each peer: how a user of it would declare a job, enqueue it and run a worker."""
