"""`jobs.queue(name)`: pause a queue, give it rules, operate on all of its jobs.

Operations on all jobs go by query, in slices: other commands do not wait for them, and after a crash they can
be started again and continue with the jobs that are left.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from errandry.api.gates import GateHandle
from errandry.api.options import Duration, Moment, check_choice, read_delay
from errandry.core.answer import Moved
from errandry.core.duration import format_time
from errandry.core.gate import GateKind, ResetRule, Resume
from errandry.core.query import quote
from errandry.core.state import HELD_STATES, TERMINAL, State
from errandry.errors import QueueInUse

if TYPE_CHECKING:
    from errandry.api.client import Client

UNCLAIMED_STATES = (State.WAITING, State.SCHEDULED, State.BLOCKED)
FINISHED_STATES = (State.COMPLETED, State.FAILED, State.CANCELED)


class Queue(GateHandle):
    """A queue, its jobs and its groups.

        await jobs.queue("mail").rerun("error~ConnectionError")

    With `dry_run`, the answer lists the jobs an operation would move, and none moves.
    """

    def __init__(self, client: "Client", name: str) -> None:
        super().__init__(client, GateKind.QUEUE, name)

    def group(self, key: str) -> GateHandle:
        """A group of the queue, the jobs with this `group`: pause it or give it a limit, rate or weight."""
        return GateHandle(self._client, GateKind.GROUP, self.name, key)

    def query(self, *states: str, more: str = "") -> str:
        """The query for jobs of this queue in these states, or in any; `more` is added to it."""
        terms = [f"queue:{quote(self.name)}"]
        if states:
            all_states = tuple(map(str, State))
            terms.append(f"state:{','.join(check_choice('state', state, all_states) for state in states)}")
        return " ".join([*terms, *filter(None, [more])])

    async def purge(self, *states: str, dry_run: bool = False) -> Moved:
        """Delete jobs no worker has claimed: waiting, scheduled and blocked, or only the given states."""
        for state in states:
            check_choice("state", state, tuple(map(str, UNCLAIMED_STATES)))
        return await self._client.remove(query=self.query(*(states or UNCLAIMED_STATES)), dry_run=dry_run)

    async def clean(self, *states: str, older: Duration = 0, dry_run: bool = False) -> Moved:
        """Delete jobs that finished longer ago than `older`, in all final states or in the given states.

        For states that are not final, the time since the job was created counts.
        """
        query = clean_query(self, states, older, await self._client.now())
        return await self._client.remove(query=query, dry_run=dry_run)

    async def rerun(
        self,
        query: str = "",
        *,
        reset_attempts: bool = False,
        from_start: bool = False,
        delay: Duration | None = None,
        run_at: Moment | None = None,
        dry_run: bool = False,
    ) -> Moved:
        """Run all failed jobs again, or those that match `query`; the options are those of `jobs.rerun`."""
        return await self._client.rerun(
            query=self.query(State.FAILED, more=query),
            reset_attempts=reset_attempts,
            from_start=from_start,
            delay=delay,
            run_at=run_at,
            dry_run=dry_run,
        )

    async def promote(self, query: str = "", *, dry_run: bool = False) -> Moved:
        """Run all scheduled jobs now, or those that match `query`."""
        return await self._client.promote(query=self.query(State.SCHEDULED, more=query), dry_run=dry_run)

    async def move(self, to: str, query: str = "", *, dry_run: bool = False) -> Moved:
        """Move jobs that no worker has claimed to another queue, all or those that match `query`.

        They keep their priority and, by their age, their place.
        """
        unclaimed = self.query(*UNCLAIMED_STATES, more=query)
        return await self._client.edit(query=unclaimed, queue=to, dry_run=dry_run)

    async def obliterate(
        self, *, force: bool = False, dry_run: bool = False, progress: Callable[[int], object] | None = None
    ) -> Moved:
        """Delete all jobs of the queue, its rules and those of its groups; its lifetime totals are kept.

        Raises `QueueInUse` while workers hold jobs of it; with `force`, those are deleted too. The queue is
        paused during this; if it is interrupted, the queue stays paused until it is called again and
        finishes. `progress` is called after each slice with the number of jobs it deleted.
        """
        if dry_run:
            return await self._client.remove(query=self.query(), force=force, dry_run=True)
        was_open = await self.pause(by="obliterate")
        held = await self.held_count()
        if held and not force:
            if was_open:
                await self.resume()
            raise QueueInUse(self.name, held)
        moved = await self._client.remove(query=self.query(), force=force, progress=progress)
        await self._remove_rules()
        return moved

    async def held_count(self) -> int:
        """The number of jobs of the queue that workers hold."""
        states = (await self._client.counts()).get(self.name, {})
        return sum(states.get(state, 0) for state in HELD_STATES)

    async def _remove_rules(self) -> None:
        submit = self._client.client.submit_change
        for gate in await self._client.rules():
            if gate.kind in (GateKind.QUEUE, GateKind.GROUP) and gate.name == self.name:
                await submit(ResetRule(gate.kind, gate.name, gate.group, declared=True))
                await submit(Resume(gate.kind, gate.name, gate.group))


def clean_query(queue: Queue, states: Sequence[str], older: Duration, now: datetime) -> str:
    """The query for the jobs that `Queue.clean` deletes; `now` is the time of the store."""
    states = states or FINISHED_STATES
    moment = format_time(round((now.timestamp() - read_delay("older", older)) * 1e6))
    field = "finished" if TERMINAL.issuperset(states) else "created"
    return queue.query(*states, more=f"{field}<={moment}")
