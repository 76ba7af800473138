"""A queue as a program meets it: to pause it, to give it rules, and to do something to all of its jobs.

What is done to all jobs is done by a query, in slices: nobody else waits for it, and after a crash it can be
begun again and goes on with what is left.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from errandry.api.gates import GateHandle
from errandry.api.options import Duration, delay, one_of
from errandry.core.answer import Moved
from errandry.core.duration import iso
from errandry.core.gate import GateKind, PutRule, Resume
from errandry.core.query import quoted
from errandry.core.rule import NO_RULE
from errandry.core.state import HELD_STATES, TERMINAL, State
from errandry.errors import QueueInUse

if TYPE_CHECKING:
    from errandry.api.client import Client

UNTAKEN = (State.WAITING, State.SCHEDULED, State.BLOCKED)
FINISHED = (State.COMPLETED, State.FAILED, State.CANCELED)


class Queue(GateHandle):
    """A queue, its jobs and the groups in it.

    Each of the bulk actions takes `dry_run`: its answer then lists the jobs it would move, and none is.
    """

    def __init__(self, client: "Client", name: str) -> None:
        super().__init__(client, GateKind.QUEUE, name)

    def group(self, key: str) -> GateHandle:
        """The jobs of this queue with this `group`."""
        return GateHandle(self._client, GateKind.GROUP, self.name, key)

    def query(self, *states: str, more: str = "") -> str:
        """Its jobs in these states, or in any, as a query; `more` are further terms of it."""
        terms = [f"queue:{quoted(self.name)}"]
        if states:
            known = tuple(map(str, State))
            terms.append(f"state:{','.join(one_of('state', state, known) for state in states)}")
        return " ".join([*terms, *filter(None, [more])])

    async def drain(self, *states: str, dry_run: bool = False) -> Moved:
        """Delete the jobs that no worker has taken: waiting, scheduled and blocked, or only those named."""
        for state in states:
            one_of("state", state, tuple(map(str, UNTAKEN)))
        return await self._client.remove(query=self.query(*(states or UNTAKEN)), dry_run=dry_run)

    async def clean(self, *states: str, older: Duration = 0, dry_run: bool = False) -> Moved:
        """Delete jobs that finished longer ago than `older`: completed, failed and canceled, or only those.

        With states that are not finished: those created longer ago.
        """
        query = await self.old(*(states or FINISHED), older=older)
        return await self._client.remove(query=query, dry_run=dry_run)

    async def old(self, *states: str, older: Duration) -> str:
        """What `clean` deletes, as a query."""
        moment = iso(round((await self._client.now() - delay("older", older)) * 1e6))
        field = "finished" if TERMINAL.issuperset(states) else "created"
        return self.query(*states, more=f"{field}<={moment}")

    async def rerun(self, query: str = "", *, dry_run: bool = False, **options: Any) -> Moved:
        """Run all failed jobs again, or those that match; `options` are those of `jobs.rerun`."""
        meant = self.query(State.FAILED, more=query)
        return await self._client.rerun(query=meant, dry_run=dry_run, **options)

    async def promote(self, query: str = "", *, dry_run: bool = False) -> Moved:
        """Run all scheduled jobs now, or those that match."""
        return await self._client.promote(query=self.query(State.SCHEDULED, more=query), dry_run=dry_run)

    async def move(self, to: str, query: str = "", *, dry_run: bool = False) -> Moved:
        """Put jobs that no worker has taken into another queue, all or those that match.

        They keep their priority and their place in line, by age.
        """
        meant = self.query(*UNTAKEN, more=query)
        return await self._client.edit(query=meant, queue=to, dry_run=dry_run)

    async def obliterate(
        self, *, force: bool = False, dry_run: bool = False, progress: Callable[[int], object] | None = None
    ) -> Moved:
        """Delete all of its jobs, its rules and those of its groups; lifetime totals are kept.

        Raises `QueueInUse` while workers have jobs of it, unless `force` takes those away from them too. The
        queue is paused meanwhile: if this is interrupted it stays paused until it is begun again and ends.
        `progress` is told after each slice how many jobs went.
        """
        if dry_run:
            return await self._client.remove(query=self.query(), force=force, dry_run=True)
        was_open = await self.pause(by="obliterate")
        held = await self.held()
        if held and not force:
            if was_open:
                await self.resume()
            raise QueueInUse(self.name, held)
        moved = await self._client.remove(query=self.query(), force=force, progress=progress)
        await self._forget()
        return moved

    async def held(self) -> int:
        """How many jobs of it workers have."""
        states = (await self._client.counts()).get(self.name, {})
        return sum(states.get(state, 0) for state in HELD_STATES)

    async def _forget(self) -> None:
        for gate in await self._client.rules():
            if gate.kind in (GateKind.QUEUE, GateKind.GROUP) and gate.name == self.name:
                await self._client.engine.submit(PutRule(gate.kind, gate.name, NO_RULE, gate.group))
                await self._client.engine.submit(Resume(gate.kind, gate.name, gate.group))
