"""Mail sent in the background: kept until the mail server has taken it."""

import os
import smtplib
import sys
from email.message import EmailMessage

from errandry import Backoff, Errandry, Fail, JobContext

SERVER = os.environ.get("SMTP", "127.0.0.1:2525")

jobs = Errandry("sqlite:///mailer.db")


@jobs.task(queue="mail", max_attempts=8, backoff=Backoff(start=0.5, cap=600), timeout="30s")
def send(ctx: JobContext, to: str, subject: str, body: str) -> str:
    """One mail. Whatever the server has against it for now is tried again; a no is a no."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.com", to, subject
    mail["Message-ID"] = f"<{ctx.id}@shop.example.com>"  # the same in every attempt: a copy can be told
    mail.set_content(body)
    host, port = SERVER.split(":")
    try:
        with smtplib.SMTP(host, int(port), timeout=10) as server:
            server.send_message(mail)
    except smtplib.SMTPRecipientsRefused as error:
        code, answer = error.recipients[to]
        if code >= 500:
            raise Fail(f"{to} is refused: {answer.decode()}") from error
        raise  # busy, or full for now: another attempt
    ctx.log(f"taken by {SERVER}")
    return str(mail["Message-ID"])


def main(to: list[str]) -> None:
    made = jobs.enqueue_many_sync(
        [send.new(to=one, subject="Welcome", body=f"Dear {one}, welcome.") for one in to]
    )
    print(f"{len(made)} mails are on their way")
    for job in made:
        jobs.sync.wait(job, timeout=60)
        errors = job.record.errors
        print(
            f"{job.record.state} after {job.record.attempts}: {errors[-1].message if errors else 'at once'}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
