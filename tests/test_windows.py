"""On Windows, Shoal says that it doesn't run there, before anything else fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.errors import UnsupportedSystem

WINDOWS = "import sys; sys.platform = 'win32'; sys.argv = [{command!r}, 'demo']; {program}"
SENTENCE = "Shoal supports Linux and macOS. On Windows, run it in WSL 2."


@pytest.mark.parametrize("command", [r"C:\Python\Scripts\shoal.exe", r"C:\Scripts\shoal"])
def test_on_windows_the_command_says_which_systems_are_supported(command: str) -> None:
    program = "from shoal.cli.main import main"
    found = subprocess.run(
        [sys.executable, "-c", WINDOWS.format(command=command, program=program)],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert found.stderr == f"error: {SENTENCE}\n"


@pytest.mark.parametrize("program", ["import shoal", "from shoal import task", "import shoal.dask"])
def test_on_windows_the_import_fails_first_with_the_supported_systems(program: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", WINDOWS.format(command="script.py", program=program)],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert found.stderr.endswith(f"shoal.errors.UnsupportedSystem: {SENTENCE}\n")
    assert found.stderr.count("Error") == 0


def test_on_windows_code_can_catch_the_import_error() -> None:
    assert issubclass(UnsupportedSystem, ImportError)
