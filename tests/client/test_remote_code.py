"""Modules travel as archives that their content names, and workers match what they need."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.client import remote_code
from shoal.client.remote_code import RemoteCode, packed_files
from shoal.execution.plan import Placement, Plan
from shoal.platform.environment import Expected, this_environment, version_of
from shoal.platform.invocation import UserCode
from shoal.storage.code import archive_name
from shoal.types import Resources, WorkerId
from shoal.worker.package import pack
from shoal.workflow import Task, Workflow

CODE = UserCode(session="s1", path=("/here",), folder="/here", preload=("numpy",))


class FakeServer:
    """Keeps archives in memory, and counts what it is sent."""

    def __init__(self, store: str, latency: float) -> None:
        self.kept: dict[str, bytes] = {}
        self.sent = 0

    def renew(self, name: str) -> bool:
        return name in self.kept

    def keep(self, name: str, archive: bytes) -> None:
        self.kept[name] = archive
        self.sent += 1


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of a project."""
    (tmp_path / "far_tool.py").write_text("import numpy\n\ndef f(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import far_tool  # type: ignore[import-not-found]

    yield far_tool
    del sys.modules["far_tool"]


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> RemoteCode:
    monkeypatch.setattr(remote_code, "CodeServer", FakeServer)
    return RemoteCode("redis://nowhere", 0.0, (), lambda _: None)


def shipped(remote: RemoteCode, function: Any) -> Any:
    workflow = Workflow.of(Task(function)(1))
    placed = dict.fromkeys(workflow.calls, Placement(WorkerId("w0"), Resources(1769)))
    return remote.of_run(CODE, pack(Plan(workflow, placed), bytes(32)), workflow)


def test_equal_files_make_equal_archives(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name * 100)
    names = {"x/a": str(tmp_path / "a"), "b": str(tmp_path / "b")}
    first = packed_files(names)
    os.utime(tmp_path / "a", (1, 1))
    assert packed_files(dict(reversed(names.items()))) == first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.namelist() == ["b", "x/a"]
        assert archive.read("x/a") == b"a" * 100


def test_workers_get_an_archive_in_place_of_paths(remote: RemoteCode, tool: Any) -> None:
    code, environment = shipped(remote, tool.f)
    server: Any = remote._server
    (name,) = server.kept
    assert code.archive == name == archive_name(server.kept[name])
    assert (code.path, code.folder, code.preload) == ((), "", ("numpy",))
    assert environment.python == this_environment().python
    used = ("cloudpickle", "numpy")
    assert environment.packages == {package: version_of(package) for package in used}
    assert environment.machine == ""


def test_workers_learn_which_environment_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_code, "CodeServer", FakeServer)
    expected = Expected("name", "shoal deploy lambda")
    remote = RemoteCode("redis://nowhere", 0.0, (), lambda _: None, expected)
    _, environment = shipped(remote, abs)
    assert (environment.name, environment.renewal) == ("name", "shoal deploy lambda")


def test_a_run_without_modules_of_the_user_ships_nothing(remote: RemoteCode) -> None:
    code, environment = shipped(remote, abs)
    assert (code.archive, code.session, code.path) == ("", "s1", ())
    assert set(environment.packages) == {"cloudpickle"}


def test_the_same_content_is_sent_once_and_again_if_the_store_has_lost_it(
    remote: RemoteCode, tool: Any
) -> None:
    server: Any = remote._server
    first = shipped(remote, tool.f)
    assert shipped(remote, tool.f) == first
    assert server.sent == 1
    server.kept.clear()
    assert shipped(remote, tool.f) == first
    assert server.sent == 2


def test_a_changed_file_makes_another_archive_whose_workers_share_no_sandbox(
    remote: RemoteCode, tool: Any
) -> None:
    first, _ = shipped(remote, tool.f)
    Path(tool.__file__).write_text("def f(x):\n    return -x\n")
    second, _ = shipped(remote, tool.f)
    assert first.archive != second.archive
    assert len({CODE.session, first.session, second.session}) == 3
    server: Any = remote._server
    assert server.sent == 2


@pytest.mark.slow
def test_a_package_is_known_by_the_name_that_pip_knows() -> None:
    assert remote_code._package_of("yaml") in ("PyYAML", "")
    assert remote_code._package_of("_pytest") == "pytest"
    assert remote_code._package_of("no_such_module") == ""
