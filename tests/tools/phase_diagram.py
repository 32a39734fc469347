"""`python -m tests.tools.phase_diagram` writes the tables of phases and ends into the docs.

Those of requests (`core/api/phases.py`) go to docs/contract.md, those of runs (`core/rollout/phases.py`) to
docs/recreate.md.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from crrd.core.api.phases import CONTAINER_MOVES, REQUEST_MOVES
from crrd.core.rollout.phases import RUN_MOVES, End, RunPhase

DOCS = Path(__file__).parents[2] / "docs"
CONTRACT, RECREATE = DOCS / "contract.md", DOCS / "recreate.md"
DRAWN = re.compile(r"(<!-- (?:phases|ends): .*? -->\n).*?(<!-- end of (?:phases|ends) -->)", re.DOTALL)
Phase = TypeVar("Phase", bound=str)


def diagram(moves: Mapping[tuple[Phase, Phase], str], *begins: Phase) -> str:
    """The state diagram of one table. It begins in these phases, or in that of the first row.

    A phase without a way out is an end.
    """
    left = [old for old, _ in moves]
    ends = [new for new in dict.fromkeys(new for _, new in moves) if new not in left]
    rows: list[tuple[str, str, str]] = [("[*]", begin, "") for begin in begins or left[:1]]
    rows += [*((old, new, why) for (old, new), why in moves.items()), *((end, "[*]", "") for end in ends)]
    drawn = (f"    {old or 'Empty'} --> {new or 'Empty'}{why and ': '}{why}\n" for old, new, why in rows)
    return f"```mermaid\nstateDiagram-v2\n{''.join(drawn)}```\n"


def ends() -> str:
    """The table of the ends of a run."""
    rows = [
        "| end | why | exit code | event | the next target follows | what you can do |",
        "|---|---|---|---|---|---|",
    ]
    for end in End:
        if end is not End.YIELDED:  # it is no end of a command
            how = end.go_on.say("`resume RUN`").replace("`resume RUN` --", "`resume RUN --")
            how = re.sub(r"(`resume RUN --[-a-z]+)", r"\1`", how)
            follows = "yes" if end.next_follows else "no"
            rows.append(f"| {end.word} | {end.cause} | {end.exit_code} | {end.event} | {follows} | {how} |")
    return "\n".join(rows) + "\n"


def drawn_in(page: str) -> str:
    """The page with what the tables give."""
    of_requests = f"\nA request:\n\n{diagram(REQUEST_MOVES)}\nA container of it:\n\n{diagram(CONTAINER_MOVES)}\n"
    written = {
        "phases: written by": of_requests,
        "phases: of runs": f"\n{diagram(RUN_MOVES, RunPhase.PULLING, RunPhase.RESTARTING)}\n",
        "ends: of runs": f"\n{ends()}\n",
    }

    def write(found: re.Match[str]) -> str:
        text = next(text for begin, text in written.items() if f"<!-- {begin}" in found[1])
        return found[1] + text + found[2]

    return DRAWN.sub(write, page)


def main() -> None:
    """Bring the pages up to date."""
    for page in (CONTRACT, RECREATE):
        page.write_text(drawn_in(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
