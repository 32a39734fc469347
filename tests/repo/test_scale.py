"""docs/scale.md has the rows that its model computes."""

from pathlib import Path

from tests.bench.scale import NODES, Cost

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_the_table_is_the_models() -> None:
    rows = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and " ms | " in line
    ]
    assert rows == [Cost(nodes).row for nodes in NODES]
