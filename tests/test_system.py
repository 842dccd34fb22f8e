"""The system's features: the same tests with and without Linux-only ones."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from observing import TIMEOUT, eventually, exists
from shoal import system
from shoal.storage.embedded import runtime_folder


@pytest.fixture(params=["as it is", "portable"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test with Linux-only features and without."""
    if request.param == "portable":
        monkeypatch.setattr(system, "LINUX", False)
    system.call.cache_clear()
    yield
    system.call.cache_clear()


def run(program: str, *arguments: str, **variables: str) -> str:
    """Run a program without Linux-only features, and return its output."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, system.PORTABLE: "1", **variables},
        stdout=subprocess.PIPE,
        timeout=TIMEOUT,
        check=True,
        text=True,
    ).stdout.strip()


@pytest.mark.usefixtures("anywhere")
def test_facts_about_the_machine_are_known_on_every_system() -> None:
    assert 1 <= system.cores() <= (os.cpu_count() or 1)
    assert 2**28 < system.granted_nbytes() <= system.memory_nbytes()
    assert system.processor()
    assert 2**20 < system.peak_nbytes() < 2**40


@pytest.mark.usefixtures("anywhere")
def test_a_process_knows_its_open_files_and_its_user() -> None:
    gc.collect()  # so that nothing is closed meanwhile
    before = system.open_files()
    pipe = os.pipe()
    assert system.open_files() == before + 2
    for descriptor in pipe:
        os.close(descriptor)
    assert {os.getuid(), os.getgid()} <= {*system.identity()}


@pytest.mark.usefixtures("anywhere")
def test_a_process_is_alive_until_it_has_been_reaped() -> None:
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


def test_without_linux_large_files_are_in_a_separate_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "LINUX", False)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    folder = system.shared_folder()
    assert folder.parent == Path(tempfile.gettempdir())
    assert folder != runtime_folder()


def test_the_socket_folder_is_short_even_if_the_temporary_one_is_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "LINUX", False)
    monkeypatch.setattr(tempfile, "tempdir", "/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_folder() == Path(f"/tmp/shoal-{os.getuid()}")
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert system.temporary_folder() == Path("/var/tmp")


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


def test_a_process_ends_with_its_parent_and_kills_its_group() -> None:
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


def test_peak_memory_is_in_bytes() -> None:
    hold = "from shoal.system import peak_nbytes; x = bytearray(b'x') * (200 * 2**20);"
    found = int(run(hold + "print(peak_nbytes())"))
    assert 200 * 2**20 <= found < 200 * 2**30  # it includes the parent's memory


def test_a_write_is_no_larger_than_every_system_accepts() -> None:
    views = [memoryview(b"x")] * 2000
    assert 0 < len(system.at_once(views)) < 1024
    page = memoryview(mmap.mmap(-1, 3 << 30))  # never touched, so it takes no memory
    assert [len(view) for view in system.at_once([page, page])] == [1 << 30]


def test_nothing_of_linux_is_called_when_it_is_hidden() -> None:
    ask = "from shoal import system; print(system.LINUX, system.call('prctl'))"
    assert run(ask) == "False None"
    if system.LINUX:
        assert run(ask, **{system.PORTABLE: "0"}) != "False None"
