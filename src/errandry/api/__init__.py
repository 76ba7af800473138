"""The Python API: the app, its tasks and jobs, flows, schedules, and what a handler sees of its job."""
