"""Bounded waiting, and looking at the processes of this machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which something that should happen at once counts as not happening."""


def eventually(look: Callable[[], T], seconds: float = PATIENCE) -> T:
    """What `look` finds as soon as that is true; what it found last if it never is."""
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


def processes_mentioning(text: str) -> dict[int, str]:
    """Command lines of the other processes that have a text there or in their environment."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in command + environment:
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def exists(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped doesn't."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def outside(pid: int) -> int:
    """The number that a process has here which has another one in a sandbox's namespace."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            found = re.search(r"^NSpid:\t(\d+)\t(?:\d+\t)*(\d+)$", status.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found is not None and int(found[2]) == pid:
            return int(found[1])
    return pid


def parent(pid: int) -> int:
    """The process that started another."""
    return int(_stat(pid)[1])


def branch_of(sandbox: int) -> int:
    """The zygote that a sandbox was forked from, by way of its guard if it has one."""
    above = parent(sandbox)
    numbers = _numbers(above)
    guarded = numbers[-1] == 1 and len(numbers) == len(_numbers(sandbox))
    return parent(above) if guarded else above


def _numbers(pid: int) -> list[int]:
    """What a process is called, here and in each namespace that it is in."""
    status = Path(f"/proc/{pid}/status").read_text()
    return [int(number) for number in status.partition("\nNSpid:")[2].splitlines()[0].split()]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
