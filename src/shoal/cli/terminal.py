"""What the terminal has room for and can show: columns, colours, characters."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from shoal.execution.wording import printable

if TYPE_CHECKING:
    from rich.text import Text

WIDE = 1000
"""Columns where no terminal limits them, so that a row is a line."""
NARROW = (
    "A narrow terminal leaves columns out, but cuts no id or number; `| cat` shows all columns."
)
"""What a command's help says of its table."""
_WORDS = 16
"""Columns that words keep; others make room for them first."""
_GAP = 2
"""Between the columns of a table."""


def terminal_width() -> int:
    """How many columns a chart may have."""
    return min(160, shutil.get_terminal_size((100, 24)).columns)


def colored(stream: TextIO) -> bool:
    """Whether a stream shows colours: it is a terminal, and NO_COLOR isn't set to anything."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def replace_unknown(*streams: TextIO) -> None:
    """Have streams show question marks for characters that their encoding doesn't have."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    numbers: Collection[str] = (),
    words: Collection[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table in which nothing is cut: ids and numbers stay in one piece.

    Args:
        titles: Of the columns.
        rows: A cell for each column; there is at least one row.
        numbers: The columns that are aligned at their ends.
        words: The columns that may be folded.
        spare: The columns that are left out if the terminal is narrow, the first one first.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else WIDE, no_color=not colored(sys.stdout))
    texts = [[Text(printable(c)) if isinstance(c, str) else c for c in row] for row in rows]
    columns = dict(zip(titles, zip(*texts, strict=True), strict=True))
    least = {title: max(len(title), *(cell.cell_len for cell in cells))
             for title, cells in columns.items()}  # fmt: skip
    least |= {title: min(least[title], _WORDS) for title in words}
    for title in spare:
        if _room(least) > console.width:
            del columns[title], least[title]
    console.width = max(console.width, _room(least))  # else the terminal folds whole lines
    table = Table(box=None, pad_edge=False)
    for title in columns:
        table.add_column(title, justify="right" if title in numbers else "left",
                         no_wrap=title not in words, overflow="fold")  # fmt: skip
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    if sys.stdout.isatty():
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    print("\n".join([line.rstrip() for line in captured.get().splitlines()]))


def _room(least: dict[str, int]) -> int:
    return sum(least.values()) + _GAP * (len(least) - 1)
