"""The health of an SQLite file: its version, durability, clock, disk, mode, size and integrity."""

import os
import shutil
import stat
import time
from collections.abc import Iterator

import apsw

from errandry.core.duration import rough_duration
from errandry.core.size import format_size
from errandry.store.health import Finding, Grade
from errandry.store.sqlite.file import Durability

SAFE_VERSION = (3, 51, 3)
"""The first version of SQLite whose write-ahead log never loses concurrent writes of two processes."""
LOG_SIZE_MAX = 256_000_000
"""Bytes in the write-ahead log above which the log is reported."""
FREE_SPACE_MIN = 200_000_000
"""Free bytes on the disk below which the disk is reported."""
NETWORK_FILESYSTEMS = {
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
MEMORY_FILESYSTEMS = {"ramfs", "tmpfs"}

DURABILITY_TEXTS = {
    Durability.POWER: "acknowledged writes survive a power cut: every pass is synced to the disk",
    Durability.PROCESS: "acknowledged writes survive a crash of the program, but a power cut may take back "
    "the last passes, never part of one: jobs of that moment can be lost, or run again",
}


def findings(db: apsw.Connection, path: str, durability: Durability) -> Iterator[Finding]:
    """All findings, those of cheap checks first. To be called on the thread of the connection."""
    yield from _versions()
    yield Finding(Grade.GOOD, "durability", f"{durability}: {DURABILITY_TEXTS[durability]}")
    yield from _clock(db, time.time())
    yield from _disk(path)
    yield from _contents(db, path)


def _versions() -> Iterator[Finding]:
    text = f"SQLite {apsw.sqlite_lib_version()} in apsw {apsw.apsw_version()}"
    if tuple(map(int, apsw.sqlite_lib_version().split("."))) >= SAFE_VERSION:
        yield Finding(Grade.GOOD, "sqlite", text)
    else:
        why = "its write-ahead log can lose concurrent writes of two processes"
        yield Finding(Grade.WRONG, "sqlite", f"{text}: {why}", "pip install --upgrade apsw")


def _clock(db: apsw.Connection, now: float) -> Iterator[Finding]:
    [(last,)] = db.execute("SELECT now FROM store")
    if last > now + 1:
        cause = "it was set back, or another host's is ahead"
        text = f"it is {rough_duration(last - now)} behind the time the store has seen: {cause}"
        yield Finding(
            Grade.WRONG, "clock", text, "keep clocks with NTP; until it has caught up, leases last longer"
        )
    else:
        yield Finding(Grade.GOOD, "clock", "not behind the time the store has seen")


def _disk(path: str) -> Iterator[Finding]:
    kind, space = _filesystem(path), shutil.disk_usage(os.path.dirname(path)).free
    if kind in NETWORK_FILESYSTEMS:
        todo = "move it to a local disk: locks do not hold across hosts, and the file can be damaged"
        yield Finding(Grade.WRONG, "disk", f"{path} is on a network filesystem ({kind})", todo)
    elif kind in MEMORY_FILESYSTEMS:
        yield Finding(
            Grade.NOTE,
            "disk",
            f"{path} is in memory ({kind})",
            "a reboot deletes it: move it to a disk if the jobs matter",
        )
    elif kind == "overlay":
        todo = "if this is a container, the file is deleted with it: mount a volume"
        yield Finding(Grade.NOTE, "disk", f"{path} is on an overlay", todo)
    else:
        yield Finding(Grade.GOOD, "disk", f"{path} is on a local disk ({kind or 'of unknown kind'})")
    if space < FREE_SPACE_MIN:
        yield Finding(
            Grade.WRONG,
            "space",
            f"only {format_size(space)} are free",
            "free some space: on a full disk nothing can be written",
        )
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        todo = f"chmod 600 {path}, unless others on this host should see the jobs"
        yield Finding(Grade.NOTE, "mode", f"others may open the file ({mode:o})", todo)
    else:
        yield Finding(Grade.GOOD, "mode", f"only its owner may open the file ({mode:o})")


def _contents(db: apsw.Connection, path: str) -> Iterator[Finding]:
    log = os.path.getsize(f"{path}-wal") if os.path.exists(f"{path}-wal") else 0
    grade = Grade.NOTE if log > LOG_SIZE_MAX else Grade.GOOD
    todo = "a program reads for very long: the log shrinks with the writes after that read has ended"
    todo = todo if log > LOG_SIZE_MAX else ""
    yield Finding(grade, "log", f"the write-ahead log has {format_size(log)}", todo)
    pages, free, page = db.pragma("page_count"), db.pragma("freelist_count"), db.pragma("page_size")
    yield Finding(
        Grade.GOOD,
        "size",
        f"{format_size(pages * page)}, of which {format_size(free * page)} free for new jobs",
    )
    problems = [problem for (problem,) in db.execute("PRAGMA quick_check(10)")]
    if problems == ["ok"]:
        yield Finding(Grade.GOOD, "integrity", "sound")
    else:
        text = f"damaged, in {len(problems)} places at least: {problems[0]}"
        yield Finding(Grade.WRONG, "integrity", text, "stop everything, keep a copy, restore a backup")


def _filesystem(path: str) -> str:
    """The type of the filesystem; empty where the system does not report it."""
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
