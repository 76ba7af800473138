"""Workers claim jobs, run their handlers, renew the leases, and settle the outcomes."""

from errandry.worker.options import WorkerOptions
from errandry.worker.worker import Worker

__all__ = ["Worker", "WorkerOptions"]
