"""Write the generated pages: `make generate`. A test fails when they no longer say what the code says."""

from collections.abc import Mapping
from pathlib import Path

from errandry.core.event import KINDS
from errandry.core.state import TABLE, Move, Rule, State

DOCS = Path(__file__).parent.parent / "docs"


def states() -> str:
    """The table of moves and a diagram of them."""
    rows = "\n".join(_row(move, rule) for move, rule in TABLE.items())
    arrows = "\n".join(sorted({arrow for move, rule in TABLE.items() for arrow in _arrows(move, rule)}))
    return f"""# States and moves

Written by `make generate` from `errandry.core.state.TABLE`. A fenced move needs the fence of the claim and an
unexpired lease; a move from a state that is not listed changes nothing.

| move | from | to | by | events |
| --- | --- | --- | --- | --- |
{rows}

```mermaid
stateDiagram-v2
{arrows}
```
"""


def _row(move: Move, rule: Rule) -> str:
    sources = ", ".join(rule.sources) or "–"
    plain = [_name(target) for target in dict.fromkeys(rule.leads.values())]
    same = all(source is target for source, target in rule.leads.items())
    targets = ["the same"] if same else plain
    others = [f"{_name(target)} if {why}" for target, why in rule.otherwise.items()]
    by = f"{rule.by}, fenced" if rule.fenced else rule.by
    reached = {*rule.leads.values(), *rule.otherwise} - {None}
    kinds = dict.fromkeys(kind for state in State if state in reached for kind in KINDS[move, state])
    events = ["removed"] if move.startswith("remove") else list(kinds)
    return f"| {move} | {sources} | {'; '.join([*targets, *others])} | {by} | {', '.join(events) or '–'} |"


def _arrows(move: Move, rule: Rule) -> list[str]:
    """Every way a move may go; an edited job that is blocked stays so."""
    targets = {*rule.leads.values(), *rule.otherwise}
    return [
        f"    {source or '[*]'} --> {target or '[*]'}: {move}"
        for source in rule.leads
        for target in targets
        if source is not target
        and (move, source) != (Move.EDIT, State.BLOCKED)
        and (rule.leads[source] is target or target in rule.otherwise)
    ]


def _name(state: State | None) -> str:
    return "gone" if state is None else state


PAGES: Mapping[str, str] = {"states.md": states()}


def main() -> None:
    for name, text in PAGES.items():
        (DOCS / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
