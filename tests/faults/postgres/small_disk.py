"""A server with a part of its files on a disk that a test can fill.

The disk is a tmpfs in a user and mount namespace. An ordinary user may make these on most systems. All
programs of the server run in them.
"""

import subprocess
import sys

from tests.faults.postgres.conftest import Mortal

SIZE = "160m"
NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount")
KEEP_DISK = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec cat'
"""Ends with its standard input, and the disk with it."""


class ServerOnSmallDisk(Mortal):
    """`part` is what the disk holds: `data`, all but the log of transactions, or `wal`, only that log.

    A crash ends the server, so that a test knows when to start it again.
    """

    def __init__(self, part: str) -> None:
        self._part = part
        self._keeper: subprocess.Popen[bytes] | None = None
        super().__init__(restart_after_crash="off")

    def initialize(self, *options: str) -> None:
        """Mount the disk, and create the files."""
        self.disk = self.folder / "disk"
        subprocess.run(["mkdir", self.disk], check=True, **self.run_as)
        self._keeper = subprocess.Popen(
            [*NAMESPACES, "sh", "-c", KEEP_DISK, "sh", SIZE, str(self.disk)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **self.run_as,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"mounted\n"
        # PostgreSQL refuses to run as root, so it gets a second namespace in which its user is another one.
        enter = ("nsenter", "--target", str(self._keeper.pid), "--user", "--mount", "--preserve-credentials")
        other_user = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
        end_with_parent = ("setpriv", "--pdeathsig", "INT") if sys.platform == "linux" else ()
        self.run_in = (*enter, *other_user, *end_with_parent)
        self.data = (self.disk if self._part == "data" else self.folder) / "data"
        wal = (self.disk if self._part == "wal" else self.folder) / "wal"
        super().initialize("--waldir", str(wal), "--wal-segsize", "1", *options)

    def fill_disk(self) -> None:
        """Write a file until no space is left."""
        self._run_on_disk("dd", "if=/dev/zero", f"of={self.disk}/ballast", "bs=8k")

    def free_disk(self) -> None:
        self._run_on_disk("rm", f"{self.disk}/ballast")

    def _run_on_disk(self, *command: str) -> None:
        subprocess.run([*self.run_in, *command], check=False, capture_output=True, **self.run_as)

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8")

    def remove(self) -> None:
        super().remove()
        if self._keeper is not None:
            self._keeper.communicate()
            self._keeper = None
