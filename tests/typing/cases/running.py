"""Wrong names of options of workers, schedules, queues and observers are reported."""

from errandry import Errandry, Event, EventKind
from tests.typing.cases.declaring import plain, without_anything

jobs = Errandry("memory:")
mail = jobs.queue("mail")


@jobs.on("failed", EventKind.COMPLETED, queue=["mail"])
async def look(event: Event) -> None: ...


@jobs.on  # E: Argument 1 to "on" of "Errandry" has incompatible type "Callable[[Event], None]"
def without_parentheses(event: Event) -> None: ...


async def right() -> None:
    await jobs.run_worker(concurrency=3, queues=["mail"], queue_order=[2, 1], signals=True)
    jobs.sync.run_worker(tasks="send", burst=True)
    jobs.schedule("nightly", without_anything, "@daily", overlap="skip", timezone="Europe/Vienna")
    await jobs.schedules.put("nightly", plain.new("ada"), "@daily", by="ada", limit=3)
    await jobs.schedules.edit("nightly", when="@hourly", catch_up="all")
    await mail.rerun("error~Timeout", from_start=True, delay="5 minutes")
    async for event in jobs.events(kind=("failed", EventKind.COMPLETED)):
        event.job.upper()


async def wrong() -> None:
    await jobs.run_worker(concurency=3)  # E: Unexpected keyword argument "concurency" for "run_worker"
    await jobs.run_worker(lease="30s")  # E: Argument "lease" to "run_worker" of "Errandry" has incompatible
    jobs.sync.run_worker(nope=1)  # E: Unexpected keyword argument "nope" for "run_worker"
    jobs.schedule("nightly", plain, "@daily", overlp="skip")  # E: Unexpected keyword argument "overlp" for
    jobs.schedule("nightly", plain, "@daily", overlap="skp")  # E: Argument "overlap" to "schedule" of
    jobs.schedules.declare("nightly", plain, "@daily", lmit=3)  # E: Unexpected keyword argument "lmit" for
    await jobs.schedules.put("nightly", plain, "@daily", overlp="skip")  # E: Unexpected keyword argument
    await jobs.schedules.edit("nightly", overlp="skip")  # E: Unexpected keyword argument "overlp" for "edit"
    jobs.sync.schedules.edit("nightly", overlp="skip")  # E: Unexpected keyword argument "overlp" for "edit"
    await mail.rerun(from_strat=True)  # E: Unexpected keyword argument "from_strat" for "rerun" of "Queue"
    jobs.on("eror")  # E: Argument 1 to "on" of "Errandry" has incompatible type "Literal['eror']"
    jobs.events(kind="eror")  # E: Argument "kind" to "events" of "Client" has incompatible type
    jobs.sync.events(kind=["eror"])  # E: List item 0 has incompatible type "Literal['eror']"
