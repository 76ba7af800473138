"""The command line, `errandry …`: one module for each command or group of commands."""
