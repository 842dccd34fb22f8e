"""The stand-in for another machine shares with this one what a network would, and nothing else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from other_machine import NEEDED, OtherMachine, interpreter

pytestmark = [pytest.mark.engine, pytest.mark.real, NEEDED]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FACTS = """
import json, os, socket, sys, shoal
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


def test_it_may_have_another_python(tmp_path: Path) -> None:
    other = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"
    machine = OtherMachine(tmp_path / "other", python=interpreter(other))
    assert ".".join(map(str, facts(machine)["version"])) == other
    with machine.gateway() as gateway:
        assert gateway["platform"].startswith("http://127.0.0.1:")
