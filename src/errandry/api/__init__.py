"""The Python API: the app, tasks, jobs, flows, schedules, and the context a handler gets."""
