"""Draw pictures to try the thumbnailer: two with a color gradient, and one that is broken."""

from pathlib import Path


def gradient(columns: int, rows: int) -> bytes:
    pixels = bytes(
        value
        for row in range(rows)
        for column in range(columns)
        for value in (255 * column // columns, 255 * row // rows, 128)
    )
    return b"P6 %d %d 255\n" % (columns, rows) + pixels


if __name__ == "__main__":
    Path("wide.ppm").write_bytes(gradient(320, 160))
    Path("tall.ppm").write_bytes(gradient(128, 256))
    Path("broken.ppm").write_bytes(b"GIF89a, but not really")
