"""What installed packages bring for a scheme of URLs, such as an engine or a store."""

from __future__ import annotations

from typing import Any

from shoal.errors import SettingsError, ShoalError

STORES = "shoal.stores"
"""The entry points that name what makes a store, by the scheme of its URLs."""
PLATFORMS = "shoal.platforms"
"""The entry points that name what makes an engine, by the scheme of its URLs."""


def schemes(group: str) -> list[str]:
    """The schemes that packages bring."""
    from importlib.metadata import entry_points

    return sorted({*entry_points(group=group).names})


def brought(group: str, scheme: str) -> Any | None:
    """What a package brings for a scheme; None if none does."""
    from importlib.metadata import entry_points

    for each in entry_points(group=group, name=scheme):
        try:
            return each.load()
        except ShoalError:
            raise
        except Exception as error:
            raise SettingsError(
                f"What is registered for {scheme}:// as {each.value} can't be used: "
                f"{type(error).__name__}: {error}."
            ) from error
    return None
