# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of `docs/performance.md`: `make figures`. With `--check` it only compares.

`benchmarks/figures.json` has what was measured: a table with its columns, and rows of case, unit
and values. A number gets the unit and three digits; a text stands as it is, except that
`{table: case: column}` is a value of another table, so that no figure is typed twice. The page says
where each table goes, by a comment, and how it was measured.
"""

import json
import pathlib
import re
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).parents[1]
FIGURES = ROOT / "benchmarks" / "figures.json"
PAGE = ROOT / "docs" / "performance.md"

END = "<!-- end of figures -->"
_TABLE = re.compile(rf"(<!-- figures: (\w+) -->\n).*?({END})", re.DOTALL)
_REFERENCE = re.compile(r"\{(\w+): (.+?): ([^:{}]+)\}")
_PREFIXES = [(1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "u")]
# Units that every figure has, with its prefix.
_WITH_UNIT = ("s", "B/s", "bytes")


def main() -> None:
    """Rewrites or checks the page."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    old = PAGE.read_text(encoding="utf-8")
    new = page(old, figures)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(new, encoding="utf-8")
    elif new != old:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not what `make figures` writes; run it.")


def page(text: str, figures: dict) -> str:
    """Returns the text with each of its tables made anew."""
    placed = [name for _, name, _ in _TABLE.findall(text)]
    if sorted(placed) != sorted(figures):
        sys.exit(f"The page has {placed}, and {FIGURES.name} has {list(figures)}.")
    return _TABLE.sub(lambda found: f"{found[1]}\n{table(figures, found[2])}\n{found[3]}", text)


def table(figures: dict, name: str) -> str:
    """Returns a table as Markdown."""
    columns = figures[name]["columns"]
    lines = [columns, ["---"] * len(columns)]
    for case, unit, *values in figures[name]["rows"]:
        if len(values) != len(columns) - 1:
            sys.exit(f"{name}, {case!r}: {len(values)} values for {len(columns) - 1} columns.")
        # Some need their unit; the others have that of the first figure of their row.
        units = [unit, *[unit if unit in _WITH_UNIT else ""] * len(values)]
        cells = [shown(value, each) for value, each in zip(values, units, strict=False)]
        lines.append([case, *(_REFERENCE.sub(referred_in(figures), cell) for cell in cells)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def referred_in(figures: dict) -> Callable[[re.Match[str]], str]:
    """Returns a function that replaces a reference by the figure of its table, with its unit."""

    def figure(found: re.Match[str]) -> str:
        name, case, column = found.groups()
        at = figures[name]["columns"].index(column)
        (row,) = [row for row in figures[name]["rows"] if row[0] == case]
        return shown(row[at + 1], row[1])

    return figure


def shown(value: float | str, unit: str) -> str:
    """Returns a value with three digits and its unit, such as `16.5 M items/s`."""
    if isinstance(value, str):
        return value
    if unit == "bytes":
        return f"{value:,} bytes"
    size, prefix = next(step for step in _PREFIXES if value >= step[0])
    gap = "" if unit in _WITH_UNIT or not prefix else " "
    return f"{value / size:.3g} {prefix}{gap}{unit}".rstrip()


if __name__ == "__main__":
    main()
