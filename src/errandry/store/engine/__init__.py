"""What runs in front of every store: engine thread, committer, backlog, replies, change counter."""
