"""The peers: what to install, which server each needs, and how it is set up."""

from typing import NamedTuple


class Peer(NamedTuple):
    """A job system. `setup` describes its configuration; `batch` is the number of jobs it takes at a time."""

    name: str
    needs: tuple[str, ...]
    server: str
    setup: str
    batch: int = 100

    @property
    def program(self) -> str:
        """Its module in `programs`; one system may run on several stores."""
        return self.name.partition("-")[0]

    @property
    def label(self) -> str:
        """Its name without that of its store."""
        return self.name.replace(f"-{self.server}", "")

    @property
    def is_ours(self) -> bool:
        return self.program == "errandry"


PGQUEUER = ("pgqueuer==1.6.0", "asyncpg>=0.31")

PEERS = {
    peer.name: peer
    for peer in (
        Peer("errandry", (), "sqlite", "100 async handlers, results kept"),
        Peer("errandry-postgres", (), "postgres", "100 async handlers, results kept"),
        Peer("errandry-postgres-1000", (), "postgres", "1,000 async handlers, results kept", batch=1_000),
        Peer("huey", ("huey==3.5.4",), "sqlite", "1 thread, polls every 0.1 s, results kept"),
        Peer("dramatiq", ("dramatiq[redis]==2.2.1",), "redis", "8 threads, results kept"),
        Peer("rq", ("rq==2.12.0",), "redis", "SimpleWorker, results kept"),
        Peer("celery", ("celery[redis]==5.7.0",), "redis", "pool solo, acks late, results kept"),
        Peer("arq", ("arq==0.28.0",), "redis", "100 async handlers, polls every 0.5 s, results kept"),
        Peer(
            "taskiq",
            ("taskiq==0.13.0", "taskiq-redis==1.2.4"),
            "redis",
            "100 async handlers, streams, results kept",
        ),
        Peer(
            "procrastinate",
            ("procrastinate==3.10.0", "psycopg[binary,pool]>=3.3"),
            "postgres",
            "100 async handlers, no results",
        ),
        Peer("pgqueuer", PGQUEUER, "postgres", "batches of 100, no results"),
        Peer("pgqueuer-1000", PGQUEUER, "postgres", "batches of 1,000, no results", batch=1_000),
    )
}
