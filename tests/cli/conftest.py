"""Fixtures: a folder with a pipeline, and commands that run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_examples import PIPELINE, Said, Shoal

from shoal.cli.main import main
from shoal.engine import default_engine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a pipeline and its own history."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_FOLDER", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield tmp_path
    default_engine.close()
    for name in {*sys.modules} - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[int], None]:
    """A function that makes stdout and stderr a terminal of a given width."""

    def terminal(columns: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        for stream in (sys.stdout, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: True)

    return terminal


@pytest.fixture
def shoal(folder: Path, capsys: pytest.CaptureFixture[str]) -> Shoal:
    """A function that runs a command in this process and waits until its runs are recorded."""

    def shoal(*args: str) -> Said:
        try:
            code = main(args)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        for session in default_engine._sessions.values():
            session.settle()
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return Said(code, said.out, said.err)

    return shoal
