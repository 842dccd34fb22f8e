"""Parse the benchmarks' arguments, with one-line errors."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path


def names_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser of a list of distinct names."""

    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            problem = f"no {', '.join(unknown)} here" if unknown else "no name given"
            raise argparse.ArgumentTypeError(f"{problem}; choose from {', '.join(known)}")
        return names

    return parse


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def new_file(text: str) -> Path:
    """Parse a path, and check before the benchmark that it can be written."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {path.parent}")
    return path
