"""A test mail server: it appends mails to a file.

It rejects `busy@…` twice with "try again", and `unknown@…` always as not existing.
"""

import asyncio
import sys
from pathlib import Path

INBOX = Path("inbox.txt")
requests: dict[str, int] = {}


def answer_recipient(recipient: str) -> bytes:
    """The server's reply to a recipient."""
    requests[recipient] = requests.get(recipient, 0) + 1
    if recipient.startswith("unknown@"):
        return b"550 no such user"
    if recipient.startswith("busy@") and requests[recipient] <= 2:
        return b"450 busy, try again"
    return b"250 ok"


async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speak the part of SMTP that a client needs to send a mail."""
    reply = b"220 ready"
    while True:
        writer.write(reply + b"\r\n")
        line = (await reader.readline()).decode().strip()
        match line.upper().partition(" ")[0]:
            case "RCPT":
                reply = answer_recipient(line.partition("<")[2].partition(">")[0])
            case "DATA":
                writer.write(b"354 go on\r\n")
                mail = await reader.readuntil(b"\r\n.\r\n")
                with INBOX.open("ab") as inbox:
                    inbox.write(mail)
                reply = b"250 accepted"
            case "QUIT" | "":
                writer.close()
                return
            case _:
                reply = b"250 ok"


async def main(port: int) -> None:
    async with await asyncio.start_server(serve_client, "127.0.0.1", port) as server:
        print(f"listening on {port}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2525))
