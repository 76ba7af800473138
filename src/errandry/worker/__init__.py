"""Workers: they claim jobs, run their handlers, keep the leases, and settle what came out."""

from errandry.worker.options import WorkerOptions
from errandry.worker.worker import Worker

__all__ = ["Worker", "WorkerOptions"]
