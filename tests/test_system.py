"""What the system offers: the same questions with and without what only Linux has."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from observing import PATIENCE, eventually, exists
from shoal import system
from shoal.storage.embedded import runtime_folder


@pytest.fixture(params=["as it is", "portable"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On a system with what only Linux has, and on one without."""
    if request.param == "portable":
        monkeypatch.setattr(system, "LINUX", False)
    system.call.cache_clear()
    system.this_host.cache_clear()
    yield
    system.call.cache_clear()
    system.this_host.cache_clear()


def run(program: str, *arguments: str, **variables: str) -> str:
    """What a program says that does without what only Linux has."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, system.PORTABLE: "1", **variables},
        stdout=subprocess.PIPE,
        timeout=PATIENCE,
        check=True,
        text=True,
    ).stdout.strip()


@pytest.mark.usefixtures("anywhere")
def test_facts_of_the_machine_are_known_everywhere() -> None:
    assert 1 <= system.cores() <= (os.cpu_count() or 1)
    assert 2**28 < system.granted_nbytes() <= system.memory_nbytes()
    assert system.processor()
    assert 2**20 < system.peak_nbytes() < 2**40


@pytest.mark.usefixtures("anywhere")
def test_process_knows_its_open_files_and_its_user() -> None:
    before = system.open_files()
    pipe = os.pipe()
    assert system.open_files() == before + 2
    for descriptor in pipe:
        os.close(descriptor)
    assert {os.getuid(), os.getgid()} <= {*system.identity()}


@pytest.mark.usefixtures("anywhere")
def test_process_is_alive_until_it_has_been_reaped() -> None:
    process = subprocess.Popen(["sleep", "60"])
    assert system.alive(process.pid)
    assert system.alive(1)
    process.kill()
    process.wait()
    assert not system.alive(process.pid)


@pytest.mark.usefixtures("anywhere")
def test_page_is_shared_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptor = system.shared_page(mmap.PAGESIZE)
    one, other = (mmap.mmap(descriptor, mmap.PAGESIZE) for _ in range(2))
    os.close(descriptor)
    one[:5] = b"hello"
    assert other[:5] == b"hello"
    assert list(tmp_path.iterdir()) == []


def test_without_linux_large_files_are_in_a_folder_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "LINUX", False)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    folder = system.shared_folder()
    assert folder.parent == Path(tempfile.gettempdir())
    assert folder != runtime_folder()


def test_folder_of_sockets_is_short_where_that_for_temporary_files_is_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "LINUX", False)
    monkeypatch.setattr(tempfile, "tempdir", "/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_folder() == Path(f"/tmp/shoal-{os.getuid()}")
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert system.temporary_folder() == Path("/var/tmp")


@pytest.mark.usefixtures("anywhere")
def test_processes_of_a_machine_have_its_name_in_common() -> None:
    ask = "from shoal.system import this_host; print(this_host())"
    portable = {} if not system.LINUX else {system.PORTABLE: "0"}
    assert system.this_host() == run(ask, **portable) != ""


def test_machines_that_share_no_folder_have_different_names(tmp_path: Path) -> None:
    ask = "from shoal.system import this_host; print(this_host())"
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here, again = (run(ask, TMPDIR=str(tmp_path / "here")) for _ in range(2))
    assert here == again
    assert run(ask, TMPDIR=str(tmp_path / "there")) != here
    shared = next((tmp_path / "here").iterdir())
    assert shared.stat().st_mode & 0o077 == 0
    assert [path.name for path in shared.iterdir()] == [".host"]


def test_who_can_not_tell_its_machine_shares_it_with_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "LINUX", False)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    names = []
    for _ in range(2):
        system.this_host.cache_clear()
        names.append(system.this_host())
    system.this_host.cache_clear()
    assert "" not in names
    assert names[0] != names[1]


FAMILY = """
import os, subprocess, sys, time
from shoal import system

parent = os.getpid()
if not os.fork():
    os.setsid()
    system.end_with_parent(parent)
    below = subprocess.Popen(["sleep", "300"])
    print(os.getpid(), below.pid, flush=True)
    time.sleep(300)
time.sleep(300)
"""


def test_process_ends_with_its_parent_and_takes_its_group_along() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", FAMILY],
        env={**os.environ, system.PORTABLE: "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child, grandchild = map(int, parent.stdout.readline().split())
    assert exists(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert eventually(lambda: not exists(child) and not exists(grandchild))
    parent.stdout.close()


def test_peak_of_memory_is_told_in_bytes() -> None:
    hold = "from shoal.system import peak_nbytes; x = bytearray(b'x') * (200 * 2**20);"
    found = int(run(hold + "print(peak_nbytes())"))
    assert 200 * 2**20 <= found < 200 * 2**30  # which counts what the parent had, too


def test_no_more_is_written_at_once_than_every_system_takes() -> None:
    views = [memoryview(b"x")] * 2000
    assert 0 < len(system.at_once(views)) < 1024
    page = memoryview(mmap.mmap(-1, 3 << 30))  # never touched, so it takes no memory
    assert [len(view) for view in system.at_once([page, page])] == [1 << 30]


def test_nothing_of_linux_is_called_when_it_is_hidden() -> None:
    ask = "from shoal import system; print(system.LINUX, system.call('prctl'))"
    assert run(ask) == "False None"
    if system.LINUX:
        assert run(ask, **{system.PORTABLE: "0"}) != "False None"
