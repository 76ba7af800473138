"""Make thumbnails in child processes: they use all cores, and a crash affects only its own job."""

import re
import sys
from pathlib import Path

from errandry import Errandry, JobContext
from errandry.errors import JobFailed

jobs = Errandry("sqlite:///thumbnailer.db")


@jobs.task(runner="process", memory="512 MB", timeout="1 minute", max_attempts=2)
def thumbnail(ctx: JobContext, picture: str, width: int) -> str:
    """Make a small copy of a picture, and return its path."""
    columns, rows, pixels = read(Path(picture).read_bytes())
    step = max(1, columns // width)
    small = bytearray()
    for row in range(0, rows - step + 1, step):
        ctx.progress(row / rows)
        for column in range(0, columns - step + 1, step):
            small += average(pixels, columns, row, column, step)
    target = Path(picture).with_suffix(f".{width}.ppm")
    part = target.with_suffix(f".{ctx.fence}")  # written aside, then renamed: no partial file
    part.write_bytes(b"P6 %d %d 255\n" % (columns // step, rows // step) + small)
    part.replace(target)
    return str(target)


def read(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and pixels of a picture in the PPM format."""
    head = re.match(rb"P6\s+(\d+)\s+(\d+)\s+255\s", data)
    if head is None:
        raise ValueError("only PPM pictures with 8 bits for each color can be read")
    return int(head[1]), int(head[2]), data[head.end() :]


def average(pixels: bytes, columns: int, row: int, column: int, step: int) -> bytes:
    """The mean color of a square of `step` by `step` pixels."""
    sums = [0, 0, 0]
    for y in range(row, row + step):
        start = 3 * (y * columns + column)
        line = pixels[start : start + 3 * step]
        for channel in range(3):
            sums[channel] += sum(line[channel::3])
    return bytes(total // (step * step) for total in sums)


def main(pictures: list[str]) -> None:
    enqueued = jobs.sync.enqueue_many([thumbnail.new(picture=picture, width=32) for picture in pictures])
    for picture, job in zip(pictures, enqueued, strict=True):
        try:
            print(picture, "→", job.result(timeout=60))
        except JobFailed as error:
            print(picture, "failed:", error.error)


if __name__ == "__main__":
    main(sys.argv[1:])
