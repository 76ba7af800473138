"""A mail server for trying things out: it appends what it gets to a file, and is moody.

`busy@…` is told to come back twice, `nobody@…` does not exist.
"""

import asyncio
import sys
from pathlib import Path

INBOX = Path("inbox.txt")
asked: dict[str, int] = {}


def answer(recipient: str) -> bytes:
    """What the server says of somebody who should get a mail."""
    asked[recipient] = asked.get(recipient, 0) + 1
    if recipient.startswith("nobody@"):
        return b"550 no such user"
    if recipient.startswith("busy@") and asked[recipient] <= 2:
        return b"450 busy, try again"
    return b"250 ok"


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As much of SMTP as a client needs to get rid of a mail."""
    said = b"220 here I am"
    while True:
        writer.write(said + b"\r\n")
        line = (await reader.readline()).decode().strip()
        match line.upper().partition(" ")[0]:
            case "RCPT":
                said = answer(line.partition("<")[2].partition(">")[0])
            case "DATA":
                writer.write(b"354 go on\r\n")
                mail = await reader.readuntil(b"\r\n.\r\n")
                with INBOX.open("ab") as inbox:
                    inbox.write(mail)
                said = b"250 taken"
            case "QUIT" | "":
                writer.close()
                return
            case _:
                said = b"250 ok"


async def main(port: int) -> None:
    async with await asyncio.start_server(talk, "127.0.0.1", port) as server:
        print(f"listening on {port}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2525))
