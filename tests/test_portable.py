"""The portable mode, and the check that no Linux-only feature is used, reach every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import linux_hidden
from observing import TIMEOUT
from shoal import system

pytestmark = pytest.mark.real

PROGRAM = """
import os, sys
import shoal
from shoal import system, task

def tried():
    # As if it were code of Shoal's.
    try:
        exec(compile("open('/proc/self/stat')", system.__file__, "exec"))
    except RuntimeError as error:
        return type(error).__name__
    return "opened"

@task
def look():
    open("/proc/self/stat").close()  # a task may
    return system.LINUX, hasattr(os, "memfd_create"), tried()

@task
def both(*found):
    return list(found)

if __name__ == "__main__":
    print(system.LINUX, tried(), both(look(), look()).compute())
"""


def test_processes_work_without_hidden_features_and_report_their_use(tmp_path: Path) -> None:
    script, notes = tmp_path / "script.py", tmp_path / "notes"
    script.write_text(PROGRAM)
    variables = {
        system.PORTABLE: "1",
        "PYTHONPATH": str(Path(__file__).parent / "portable"),
        linux_hidden.NOTES: str(notes),
    }
    said = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | variables,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        timeout=TIMEOUT,
        check=True,
        text=True,
    ).stdout
    assert said == f"False LinuxOnly {[(False, False, 'LinuxOnly')] * 2}\n"
    assert len(notes.read_text().splitlines()) == 3
