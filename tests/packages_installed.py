"""Packages that seem to be installed: modules with entry points, in a folder on the import path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, **found: str) -> None:
    """Register what entry points of a group name, by scheme; workers see the package, too.

    Args:
        folder: Where to put it.
        monkeypatch: What undoes the change of the import path.
        group: The group of entry points.
        **found: `module:attribute` for each scheme.
    """
    about = folder / "plugged-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    lines = [f"{scheme} = {where}" for scheme, where in found.items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
