"""Bounded waiting, and inspection of this machine's processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from shoal.testing.waiting import TIMEOUT, eventually

__all__ = [
    "TIMEOUT",
    "branch_of",
    "eventually",
    "exists",
    "outside",
    "parent",
    "processes_mentioning",
]


def processes_mentioning(text: str) -> dict[int, str]:
    """Return the command lines of other processes with a text there or in their environment."""
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
    """Return whether a process runs; a zombie doesn't."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def outside(pid: int) -> int:
    """Return the process id outside of a process with a given id inside a sandbox's namespace."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            found = re.search(r"^NSpid:\t(\d+)\t(?:\d+\t)*(\d+)$", status.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found is not None and int(found[2]) == pid:
            return int(found[1])
    return pid


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(_stat(pid)[1])


def branch_of(sandbox: int) -> int:
    """Return the zygote that a sandbox was forked from, through its guard if it has one."""
    above = parent(sandbox)
    numbers = _numbers(above)
    guarded = numbers[-1] == 1 and len(numbers) == len(_numbers(sandbox))
    return parent(above) if guarded else above


def _numbers(pid: int) -> list[int]:
    """Return a process's ids, here and in each of its namespaces."""
    status = Path(f"/proc/{pid}/status").read_text()
    return [int(number) for number in status.partition("\nNSpid:")[2].splitlines()[0].split()]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
