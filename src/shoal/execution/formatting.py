"""Times, sizes, counts and names as text for people, the same everywhere in Shoal."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s"))
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Invisible characters that Persian text and emoji need."""


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit that suits a time: its length in seconds, and its name."""
    return next((u for u in _UNITS if abs(seconds) >= u[0]), _UNITS[-1 if seconds else 0])


def seconds_text(seconds: float) -> str:
    """A time in the unit that suits it."""
    size, unit = time_unit(seconds)
    return f"{_digits(seconds / size)} {unit}"


def nbytes_text(nbytes: float) -> str:
    """A size in the unit that suits it."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    size, unit = next(u for u in _SIZES if nbytes >= u[0])
    return f"{_digits(nbytes / size)} {unit}"


def _digits(value: float) -> str:
    return f"{value:,.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def figure(value: float) -> str:
    """A number with three digits, or with all digits before the point if there are more."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def percent(share: float, sign: str = "") -> str:
    """How far off something is, in per cent, or as a factor if that is more than ten.

    Args:
        share: The difference, as a share of what it is held against.
        sign: `+` to tell more from less.
    """
    return f"{share:{sign}.0%}" if share < 10 else f"\N{MULTIPLICATION SIGN}{1 + share:,.0f}"


def counted(count: int, what: str, plural: str = "s") -> str:
    """A count with its noun: `1 task`, `2,000 tasks`."""
    return f"{count:,} {what}{plural * (count != 1)}"


def listed(names: Sequence[str], most: int = 10) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def printable(text: str, kept: str = "") -> str:
    """The text with escapes for characters that a terminal would obey or not show.

    Args:
        text: Whatever was given as a name or message.
        kept: Characters that are left as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if _harmless(c) or c in kept else _escape(c) for c in text)


def _harmless(character: str) -> bool:
    """Whether a terminal shows a character as it is; spaces of any width count."""
    import unicodedata  # here, because most processes never need it

    is_space = unicodedata.category(character) == "Zs"
    return character.isprintable() or is_space or character in _JOINERS


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
