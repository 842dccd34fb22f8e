"""On Windows, which Shoal doesn't run on, it says so before anything else fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.errors import UnsupportedSystem

WINDOWS = "import sys; sys.platform = 'win32'; sys.argv = [{command!r}, 'demo']; {program}"
SENTENCE = "Shoal runs on Linux and macOS; on Windows, use it in WSL 2."


@pytest.mark.parametrize("command", [r"C:\Python\Scripts\shoal.exe", r"C:\Scripts\shoal"])
def test_command_says_on_windows_where_it_runs(command: str) -> None:
    program = "from shoal.cli.main import main"
    found = subprocess.run(
        [sys.executable, "-c", WINDOWS.format(command=command, program=program)],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert found.stderr == f"error: {SENTENCE}\n"


@pytest.mark.parametrize("program", ["import shoal", "from shoal import task", "import shoal.dask"])
def test_import_says_on_windows_where_it_runs_before_anything_else_fails(program: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", WINDOWS.format(command="script.py", program=program)],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert found.stderr.endswith(f"shoal.errors.UnsupportedSystem: {SENTENCE}\n")
    assert found.stderr.count("Error") == 0


def test_who_can_do_without_shoal_on_windows_may() -> None:
    assert issubclass(UnsupportedSystem, ImportError)
