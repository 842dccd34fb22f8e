"""Workers import modules from the same folders as the client."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shoal.import_path import import_also_from, import_first_from, import_path


def test_the_path_for_other_processes_is_valid_in_any_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "relative", "/absolute"])
    here = os.getcwd()
    assert import_path() == (here, os.path.join(here, "relative"), "/absolute")


def test_folders_that_come_first_are_not_searched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/own", "/both"])
    path = sys.path
    import_first_from(["/theirs", "/both"])
    assert sys.path == ["/theirs", "/both", "/own"]
    assert sys.path is path


def test_folders_that_come_last_are_not_searched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/own", "/both"])
    import_also_from(["/theirs", "/both"])
    assert sys.path == ["/own", "/both", "/theirs"]
