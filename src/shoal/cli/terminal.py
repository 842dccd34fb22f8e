"""Print tables that fit the terminal, and detect its width, colours and encoding."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from shoal.execution.formatting import printable

if TYPE_CHECKING:
    from rich.text import Text

WIDE = 1000
"""The width assumed if stdout is not a terminal, so that each row is one line."""
NARROW = (
    "On a narrow terminal some columns are omitted; ids and numbers are never truncated. "
    "Pipe through `cat` to see all columns."
)
"""The note on narrow terminals in a command's help."""
_WORDS = 16
"""The minimum width of a column that may wrap."""
_GAP = 2
"""The spaces between the columns of a table."""


def terminal_width() -> int:
    """Return how many columns a chart may have."""
    return min(160, shutil.get_terminal_size((100, 24)).columns)


def colored(stream: TextIO) -> bool:
    """Return whether to colour a stream: it is a terminal, and NO_COLOR is unset or empty."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def replace_unknown(*streams: TextIO) -> None:
    """Make streams print `?` for characters that their encoding lacks."""
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
    """Print a table that never truncates a cell.

    Args:
        titles: The columns' headings.
        rows: At least one row, with a cell for each column.
        numbers: The columns to align right.
        words: The columns that may wrap.
        spare: The columns to omit on a narrow terminal, in this order.
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
    console.width = max(console.width, _room(least))  # else the terminal wraps whole lines
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
