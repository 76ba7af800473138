"""The committer: any commands, with a store that is sometimes unavailable or loses replies."""

import asyncio
import copy
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from errandry.core.answer import Answer, Inserted
from errandry.core.command import CancelJobs, Claim, Command, Renew, Settle, Upkeep
from errandry.errors import ReplyLost, StoreUnavailable
from errandry.store.contract import RANK
from errandry.store.engine.backlog import GIVE_UP_MAX, WriteLimits
from errandry.store.engine.committer import Committer
from errandry.store.memory.driver import MemoryStore
from errandry.testing.clock import FakeClock
from tests.new_jobs import insert
from tests.store.engine.committer_kit import FakeSleep, claim, command_keys, renew, settle

names = st.sampled_from("abcd")


commands = st.one_of(
    st.builds(insert, names),
    st.lists(names, max_size=4, unique=True).filter(bool).map(lambda ids: insert(*ids)),
    st.builds(settle, names),
    st.lists(names, max_size=5).map(lambda ids: renew(*ids)),
    st.lists(names, min_size=1, max_size=3).map(lambda ids: CancelJobs(ids=tuple(ids))),
    st.builds(claim, names, st.integers(1, 4)),
    st.just(Upkeep()),
)


class FlakyStore(MemoryStore):
    """Answers each command with its object id. It is sometimes unavailable, and sometimes loses the reply."""

    def __init__(self, replies: list[str], tracks: int) -> None:
        super().__init__()
        self.tracks = tracks
        self.replies = iter(replies)
        self.passes: list[list[Command]] = []

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        await asyncio.sleep(0)
        match next(self.replies, "well"):
            case "away":
                raise StoreUnavailable("s", "away")
            case "lost":
                raise ReplyLost("s", "gone")
        self.passes.append(list(commands))
        return [Inserted((str(id(command)),)) for command in commands]

    def track(self, command: Command) -> int:
        return RANK[type(command)] % self.tracks


@settings(deadline=None, max_examples=60)
@given(
    rounds=st.lists(st.lists(commands, max_size=12), max_size=4),
    pass_rows=st.integers(1, 6),
    pending_rows=st.integers(1, 8) | st.just(10_000),
    replies=st.lists(st.sampled_from(["well", "away", "lost"]), max_size=20),
    tracks=st.sampled_from([1, 3]),
)
def test_random_commands_are_each_answered_and_written_once_in_order(
    rounds: list[list[Command]], pass_rows: int, pending_rows: int, replies: list[str], tracks: int
) -> None:
    limits = WriteLimits(pass_rows=pass_rows, pending_rows=pending_rows, give_up_after=GIVE_UP_MAX)
    store = FlakyStore(replies, tracks)
    # Copies, so that equal commands are different objects.
    rounds = [[copy.copy(command) for command in commands] for commands in rounds]

    async def run() -> list[Answer]:
        clock = FakeClock()
        committer = Committer(store, limits, clock, FakeSleep(clock))
        tasks = []
        for batch in rounds:
            tasks += [asyncio.create_task(committer.submit(command)) for command in batch]
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    answers = asyncio.run(run())

    submitted = [command for batch in rounds for command in batch]
    assert answers == [Inserted((str(id(command)),)) for command in submitted]
    ids_written = [id(command) for written in store.passes for command in written]
    assert sorted(ids_written) == sorted(map(id, submitted))
    for written in store.passes:
        all_keys = [key for command in written for key in command_keys(command)]
        assert len(all_keys) == len(set(all_keys))
        assert len(written) == 1 or sum(rows(command) for command in written) <= pass_rows
        ranks = [RANK[type(command)] for command in written]
        assert ranks == sorted(ranks)
    if pending_rows == 10_000:  # there is always room, so all commands are accepted in order
        check_order(submitted, store.passes)
    check_order([command for command in submitted if isinstance(command, Settle | Renew)], store.passes)
    check_order([command for command in submitted if not isinstance(command, Settle | Renew)], store.passes)


def check_order(submitted: list[Command], passes: list[list[Command]]) -> None:
    """The commands with the same key were written one per pass, in the order in which they were handed in."""
    place = {id(command): number for number, commands in enumerate(passes) for command in commands}
    for key in {key for command in submitted for key in command_keys(command)}:
        places = [place[id(command)] for command in submitted if key in command_keys(command)]
        assert places == sorted(set(places))


def rows(command: Command) -> int:
    return command.limit if isinstance(command, Claim) else max(1, len(command_keys(command)))
