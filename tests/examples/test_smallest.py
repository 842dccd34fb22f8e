"""The README's smallest example works however a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

README = Path(__file__).parents[2] / "README.md"
CODE = (
    README.read_text()
    .partition("## The smallest example")[2]
    .partition("```python\n")[2]
    .partition("```")[0]
)
SECONDS = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "smallest.py").write_text(CODE)
    return tmp_path


def said(folder: Path, *command: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with some arguments in a folder."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        input=typed,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize("command", [["smallest.py"], ["-m", "smallest"], ["-i", "smallest.py"]])
def test_it_runs_as_a_script_and_as_a_module(folder: Path, command: list[str]) -> None:
    assert said(folder, *command).stdout == "285\n"


def test_it_can_be_typed_at_a_prompt(tmp_path: Path) -> None:
    assert said(tmp_path, "-i", typed=CODE).stdout == "285\n"


def test_shoal_run_runs_it_and_notes_that_the_file_runs_it_too(folder: Path) -> None:
    done = said(folder, "-m", "shoal.cli.main", "run", "smallest.py:out")
    assert (done.returncode, done.stdout) == (0, "285\n285\n"), done.stderr
    assert "note: smallest.py ran a workflow while it was imported" in done.stderr
    assert '`if __name__ == "__main__":`' in done.stderr
    assert "11 tasks in " in done.stderr


def test_it_runs_in_a_notebook(tmp_path: Path) -> None:
    """Each paragraph is a cell."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(
        startup_timeout=SECONDS, kernel_name="python3", cwd=str(tmp_path), env={**os.environ}
    )
    printed: list[str] = []

    def heard(message: dict[str, object]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream" and isinstance(content, dict):
            printed.append(content["text"])

    try:
        for cell in CODE.split("\n\n"):
            reply = client.execute_interactive(cell, timeout=SECONDS, output_hook=heard)
            assert reply["content"]["status"] == "ok", reply
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert "".join(printed) == "285\n"
