"""A store in memory that records its passes."""

from collections.abc import Sequence

from errandry.core.answer import Answer
from errandry.core.command import Command
from errandry.store.memory.driver import MemoryStore


class RecordingStore(MemoryStore):
    """Records the commands of each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[Sequence[Command]] = []

    @property
    def passes(self) -> list[list[type]]:
        """The types of the commands of each pass."""
        return [[type(command) for command in commands] for commands in self.commands]

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.commands.append(commands)
        return await super().commit(commands)
