"""The health of an SQLite file: where it is, what it survives, whether it is sound."""

import os
import shutil
import stat
import time
from collections.abc import Iterator

import apsw

from errandry.core.duration import rough
from errandry.core.size import short
from errandry.store.health import Finding, Grade
from errandry.store.sqlite.file import Durability

SAFE = (3, 51, 3)
"""The first SQLite whose write-ahead log never loses what two processes write at once."""
LOG_MAX = 256_000_000
SPACE_MIN = 200_000_000
NETWORK = {
    "9p",
    "afs",
    "ceph",
    "cifs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "glusterfs",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
}
FLEETING = {"ramfs", "tmpfs"}

WORDS = {
    Durability.POWER: "what is acknowledged survives a power cut: every pass is synced to the disk",
    Durability.PROCESS: "what is acknowledged survives a crash of the program, but a power cut may take back "
    "the last passes, never part of one: jobs of that moment can be lost, or run again",
}


def examined(db: apsw.Connection, path: str, durability: Durability) -> Iterator[Finding]:
    """One thing after the other, the cheap ones first. On the thread of the connection."""
    yield from _versions()
    yield Finding(Grade.GOOD, "durability", f"{durability}: {WORDS[durability]}")
    yield from _clock(db, time.time())
    yield from _place(path)
    yield from _contents(db, path)


def _versions() -> Iterator[Finding]:
    text = f"SQLite {apsw.sqlite_lib_version()} in apsw {apsw.apsw_version()}"
    if tuple(map(int, apsw.sqlite_lib_version().split("."))) >= SAFE:
        yield Finding(Grade.GOOD, "sqlite", text)
    else:
        why = "its write-ahead log can lose what two processes write at once"
        yield Finding(Grade.WRONG, "sqlite", f"{text}: {why}", "pip install --upgrade apsw")


def _clock(db: apsw.Connection, now: float) -> Iterator[Finding]:
    [(last,)] = db.execute("SELECT now FROM store")
    if last > now + 1:
        cause = "it was set back, or another host's is ahead"
        text = f"it is {rough(last - now)} behind the time the store has seen: {cause}"
        yield Finding(
            Grade.WRONG, "clock", text, "keep clocks with NTP; until it has caught up, leases last longer"
        )
    else:
        yield Finding(Grade.GOOD, "clock", "not behind the time the store has seen")


def _place(path: str) -> Iterator[Finding]:
    kind, space = _filesystem(path), shutil.disk_usage(os.path.dirname(path)).free
    if kind in NETWORK:
        todo = "move it to a local disk: locks do not hold across hosts, and the file can be damaged"
        yield Finding(Grade.WRONG, "disk", f"{path} is on a network filesystem ({kind})", todo)
    elif kind in FLEETING:
        yield Finding(
            Grade.NOTE, "disk", f"{path} is in memory ({kind})", "a reboot takes it: move it if it matters"
        )
    elif kind == "overlay":
        todo = "if this is a container, the file goes with it: mount a volume"
        yield Finding(Grade.NOTE, "disk", f"{path} is on an overlay", todo)
    else:
        yield Finding(Grade.GOOD, "disk", f"{path} is on a local disk ({kind or 'of unknown kind'})")
    if space < SPACE_MIN:
        yield Finding(
            Grade.WRONG,
            "space",
            f"only {short(space)} are free",
            "make room: without it nothing can be written",
        )
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        todo = f"chmod 600 {path}, unless others on this host should see the jobs"
        yield Finding(Grade.NOTE, "mode", f"others may open the file ({mode:o})", todo)
    else:
        yield Finding(Grade.GOOD, "mode", f"only its owner may open the file ({mode:o})")


def _contents(db: apsw.Connection, path: str) -> Iterator[Finding]:
    log = os.path.getsize(f"{path}-wal") if os.path.exists(f"{path}-wal") else 0
    grade = Grade.NOTE if log > LOG_MAX else Grade.GOOD
    todo = "someone reads for very long, or was killed: it shrinks when all have closed the file"
    todo = todo if log > LOG_MAX else ""
    yield Finding(grade, "log", f"the write-ahead log has {short(log)}", todo)
    pages, free, page = db.pragma("page_count"), db.pragma("freelist_count"), db.pragma("page_size")
    yield Finding(
        Grade.GOOD, "size", f"{short(pages * page)}, of which {short(free * page)} free for new jobs"
    )
    faults = [fault for (fault,) in db.execute("PRAGMA quick_check(10)")]
    if faults == ["ok"]:
        yield Finding(Grade.GOOD, "integrity", "sound")
    else:
        text = f"damaged, in {len(faults)} places at least: {faults[0]}"
        yield Finding(Grade.WRONG, "integrity", text, "stop everything, keep a copy, restore a backup")


def _filesystem(path: str) -> str:
    """The type of the filesystem, where the system tells."""
    best, kind = "", ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                before, _, after = line.partition(" - ")
                point = before.split()[4].encode().decode("unicode_escape")
                if _is_in(path, point) and len(point) >= len(best):
                    best, kind = point, after.split()[0]
    except OSError:
        return ""
    return kind


def _is_in(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(f"{folder}/")
