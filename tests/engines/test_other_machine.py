"""The stand-in for another machine shares with this one what a network would, and nothing else."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from other_machine import HERE, NEEDED, OtherMachine, interpreter
from shoal import Session, Task
from shoal.errors import EnvironmentMismatch
from store_servers import tcp_server, url_of

pytestmark = [pytest.mark.engine, pytest.mark.real, NEEDED]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FACTS = """
import json, os, socket, sys, time, shoal
from pathlib import Path
print(json.dumps({
    "boot": Path("/proc/sys/kernel/random/boot_id").read_text(),
    "host": socket.gethostname(),
    "pid": os.getpid(),
    "shm": os.listdir("/dev/shm"),
    "tmp": os.listdir("/tmp"),
    "seen": [path for path in sys.argv[1:] if os.path.exists(path)],
    "shoal": shoal.__file__,
    "version": sys.version_info[:2],
    "variables": dict(os.environ),
    "time": time.time(),
}))
"""


def facts(machine: OtherMachine, *paths: str) -> dict[str, Any]:
    """What a program finds there, and which paths exist."""
    with machine.running("-c", FACTS, *paths) as process:
        assert process.stdout is not None
        found: dict[str, Any] = json.loads(process.stdout.read())
        return found


@pytest.mark.parametrize("container", [False, True])
def test_it_has_a_boot_id_of_its_own_unless_it_is_a_container(
    tmp_path: Path, container: bool
) -> None:
    found = facts(OtherMachine(tmp_path / "other", container=container))
    assert (found["boot"] == BOOT_ID.read_text()) == container


def test_it_sees_nothing_of_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_CLIENT", "1")
    machine = OtherMachine(tmp_path / "other", environment={"OF_OTHER": "2"})
    source = str(Path(__file__).parents[2])
    found = facts(machine, str(tmp_path), source, os.path.expanduser("~/.local"))
    assert found["seen"] == found["tmp"] == found["shm"] == []
    assert found["shoal"].startswith("/opt/environment/")
    assert found["host"] == "other"
    assert found["pid"] < 10
    assert found["variables"]["OF_OTHER"] == "2"
    assert "OF_CLIENT" not in found["variables"]
    assert tuple(found["version"]) == sys.version_info[:2]


@pytest.mark.parametrize("ahead", [3.0, -3.0])
def test_its_clock_may_be_wrong(tmp_path: Path, ahead: float) -> None:
    machine = OtherMachine(tmp_path / "other", ahead=ahead)
    begin = time.time()
    assert begin + ahead < facts(machine)["time"] < time.time() + ahead


@pytest.fixture(scope="module")
def another_python(tmp_path_factory: pytest.TempPathFactory) -> OtherMachine:
    version = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"
    return OtherMachine(tmp_path_factory.mktemp("python") / "other", python=interpreter(version))


def test_it_may_have_another_python(another_python: OtherMachine) -> None:
    found = facts(another_python)["version"]
    assert ".".join(map(str, found)) == another_python.python.version
    with another_python.gateway() as gateway:
        assert gateway["platform"].startswith("http://127.0.0.1:")


def refusal(machine: OtherMachine) -> str:
    """How a client of this Python is told that a machine has another one."""
    return f"Python {machine.python.version} instead of {HERE.version}"


def test_a_gateway_of_another_python_is_refused_in_words(
    another_python: OtherMachine, tmp_path: Path
) -> None:
    refused = pytest.raises(EnvironmentMismatch, match=refusal(another_python))
    with tcp_server() as port, another_python.gateway() as gateway, refused:
        Session(**gateway, store=url_of(port), folder=str(tmp_path))


def test_one_of_two_gateways_with_another_python_is_refused_in_words(
    another_python: OtherMachine, tmp_path: Path
) -> None:
    same = OtherMachine(tmp_path / "same")
    with (
        tcp_server() as port,
        same.gateway(SHOAL_TOKEN="common") as first,
        another_python.gateway(SHOAL_TOKEN="common") as second,
    ):
        platform = f"{first['platform']},{second['platform']}"
        given = {"platform": platform, "token": "common", "store": url_of(port)}
        with pytest.raises(EnvironmentMismatch, match=refusal(another_python)):
            Session(**given, folder=str(tmp_path))


def test_a_worker_of_another_python_refuses_in_words_before_it_runs_anything(
    another_python: OtherMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway may have been replaced since the client asked it."""
    monkeypatch.setattr("shoal.platform.http.HttpPlatform.check_environment", lambda _: None)
    with (
        tcp_server() as port,
        another_python.gateway() as gateway,
        Session(**gateway, store=url_of(port), folder=str(tmp_path)) as session,
        pytest.raises(EnvironmentMismatch, match=refusal(another_python)),
    ):
        session.compute(Task(lambda number: number + 1)(1))
