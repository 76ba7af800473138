"""Send mail in the background: a mail is kept until the mail server has accepted it."""

import os
import smtplib
import sys
from email.message import EmailMessage

from errandry import Backoff, Errandry, Fail, JobContext

SERVER = os.environ.get("SMTP", "127.0.0.1:2525")

jobs = Errandry("sqlite:///mailer.db")


@jobs.task(queue="mail", max_attempts=8, backoff=Backoff(start=0.5, cap=600), timeout="30s")
def send(ctx: JobContext, to: str, subject: str, body: str) -> str:
    """Send one mail. A temporary refusal is retried, a permanent one fails the job."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.com", to, subject
    mail["Message-ID"] = f"<{ctx.id}@shop.example.com>"  # the same in every attempt, to detect copies
    mail.set_content(body)
    host, port = SERVER.split(":")
    try:
        with smtplib.SMTP(host, int(port), timeout=10) as server:
            server.send_message(mail)
    except smtplib.SMTPRecipientsRefused as error:
        code, answer = error.recipients[to]
        if code >= 500:
            raise Fail(f"{to} is refused: {answer.decode()}") from error
        raise  # a temporary refusal: retry
    ctx.log(f"accepted by {SERVER}")
    return str(mail["Message-ID"])


def main(to: list[str]) -> None:
    enqueued = jobs.sync.enqueue_many(
        [send.new(to=address, subject="Welcome", body=f"Dear {address}, welcome.") for address in to]
    )
    print(f"{len(enqueued)} mails enqueued")
    for job in enqueued:
        job.wait(timeout=60)
        errors = job.errors
        print(f"{job.state} after {job.attempts}: {errors[-1].message if errors else 'at once'}")


if __name__ == "__main__":
    main(sys.argv[1:])
