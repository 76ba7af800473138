"""A call of a task is checked like a call of its function."""

from typing import assert_type

from errandry import Call, DefaultOptions, Errandry, Job, SyncJob, chord, flow, parallel
from tests.typing.cases.declaring import (
    loose,
    optioned,
    plain,
    threaded,
    threaded_with_context,
    threaded_with_options,
    with_context,
    without_anything,
)

jobs = Errandry("memory:")
defaults: DefaultOptions = {"queue": "mail", "max_attempts": 3, "timeout": None, "backoff": "10s", "keep": 0}


async def right() -> None:
    Errandry(defaults=defaults)
    Errandry("memory:", defaults={"timeout": "5 minutes"})
    assert_type(await plain.enqueue("ada"), Job[str])
    assert_type(await plain.enqueue("ada", 2), Job[str])
    assert_type(await plain.enqueue(to="ada", copies=2), Job[str])
    assert_type(await optioned.enqueue("ada"), Job[int])
    assert_type(await threaded.enqueue("ada"), Job[bytes])
    assert_type(await threaded_with_options.enqueue(to="ada"), Job[bytes])
    assert_type(await with_context.enqueue("ada"), Job[str])
    assert_type(await threaded_with_context.enqueue(to="ada"), Job[list[str]])
    assert_type(await without_anything.enqueue(), Job[None])
    assert_type(plain.sync.enqueue("ada"), SyncJob[str])
    assert_type(plain.new("ada"), Call[str])
    assert_type(await plain.using(delay="5 minutes", priority=-10).enqueue("ada"), Job[str])
    assert_type(plain.using(queue="a").using(id="b").new(to="ada"), Call[str])
    assert_type(await plain.bind(object()).enqueue("ada"), Job[str])
    assert_type(plain.using(queue="a").sync.bind(object()).enqueue(to="ada"), SyncJob[str])
    await jobs.bind(object()).enqueue_many([plain.new("ada"), without_anything.new()])
    await jobs.enqueue_many([plain.new("ada"), without_anything.new()])
    await jobs.enqueue("send", {"to": "ada"}, queue="mail", delay="5 minutes", version=2)
    await loose.enqueue(value=1, rest={})
    assert_type(await jobs.enqueue_flow(flow(optioned.new("ada"), plain.new("ada"))), Job[int])
    assert_type(await jobs.enqueue_flow(parallel(plain.new("ada"), plain.new("bob"))), list[Job[str]])
    assert_type(jobs.sync.enqueue_flow(chord([plain.new("ada")], optioned.new("ada"))), SyncJob[int])


async def wrong() -> None:
    await plain.enqueue()  # E: Missing positional argument "to" in call to "enqueue" of "Task"
    await plain.enqueue(5)  # E: Argument 1 to "enqueue" of "Task" has incompatible type "int"; expected "str"
    await plain.enqueue(to=5)  # E: Argument "to" to "enqueue" of "Task" has incompatible type "int"
    await plain.enqueue("ada", "2")  # E: Argument 2 to "enqueue" of "Task" has incompatible type "str"
    await plain.enqueue("ada", 2, 3)  # E: Too many arguments for "enqueue" of "Task"
    await plain.enqueue("ada", subject="Hi")  # E: Unexpected keyword argument "subject" for "enqueue"
    await plain.enqueue("ada", to="ada")  # E: "enqueue" of "Task" gets multiple values for keyword
    await without_anything.enqueue(1)  # E: Too many arguments for "enqueue" of "Task"
    await with_context.enqueue()  # E: Missing positional argument "to" in call to "enqueue" of "Task"
    await with_context.enqueue(ctx=1, to="a")  # E: Unexpected keyword argument "ctx" for "enqueue" of "Task"
    await threaded_with_context.enqueue(5)  # E: Argument 1 to "enqueue" of "Task" has incompatible type "int"
    await threaded_with_options.enqueue(5)  # E: Argument 1 to "enqueue" of "Task" has incompatible type "int"
    plain.sync.enqueue(5)  # E: Argument 1 to "enqueue" of "SyncTask" has incompatible type "int"
    plain.sync.enqueue()  # E: Missing positional argument "to" in call to "enqueue" of "SyncTask"
    plain.new(5)  # E: Argument 1 to "new" of "Task" has incompatible type "int"; expected "str"
    plain.new(adress="ada")  # E: Unexpected keyword argument "adress" for "new" of "Task"
    await jobs.enqueue("send", {}, queu="mail")  # E: Unexpected keyword argument "queu" for "enqueue"
    jobs.sync.enqueue("send", queu="mail")  # E: Unexpected keyword argument "queu" for "enqueue"
    await jobs.bind(object()).enqueue("send", prioritee=1)  # E: Unexpected keyword argument "prioritee" for
    await jobs.enqueue("send", queue=5)  # E: Argument "queue" to "enqueue" of "Errandry" has incompatible
    await jobs.enqueue_many([plain])  # E: List item 0 has incompatible type "Task[[str, int], str]"


async def wrong_defaults() -> None:
    Errandry(defaults={"priority": 1})  # E: Argument "defaults" to "Errandry" has incompatible type
    Errandry(defaults={"queue": None})  # E: Argument "defaults" to "Errandry" has incompatible type
    Errandry(defaults={"timeout": []})  # E: Argument "defaults" to "Errandry" has incompatible type


async def wrong_through_using() -> None:
    await plain.using(delay=5).enqueue(5)  # E: Argument 1 to "enqueue" of "Task" has incompatible type "int"
    plain.using(delay=5).using(queue="a").new()  # E: Missing positional argument "to" in call to "new"
    with_context.using(queue="a").sync.enqueue(1)  # E: Argument 1 to "enqueue" of "SyncTask" has
    plain.using(prioritee=1)  # E: Unexpected keyword argument "prioritee" for "using" of "Task"
    plain.using(priority="high")  # E: Argument "priority" to "using" of "Task" has incompatible type "str"
    plain.using(delay=[])  # E: Argument "delay" to "using" of "Task" has incompatible type
    plain.using(run_at=None, name="x")  # E: Unexpected keyword argument "name" for "using" of "Task"
    plain.using(lifo="yes")  # E: Argument "lifo" to "using" of "Task" has incompatible type
    plain.using(tags="nightly")  # E: Argument "tags" to "using" of "Task" has incompatible type "str"
    await plain.set_rules(limits=5)  # E: Unexpected keyword argument "limits" for "set_rules" of "Task"
    plain.using("mail")  # E: Too many positional arguments for "using" of "Task"
