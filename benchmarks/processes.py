"""Kill every process that an engine started, even if its parent has exited."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, where the system can do that (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> set[int]:
    """Return the living children of a process, including adopted ones."""
    return {child for child, parent in _living() if parent == pid}


def descendants(pid: int) -> set[int]:
    """Return the living descendants of a process, without zombies."""
    children: dict[int, list[int]] = {}
    for child, parent in _living():
        children.setdefault(parent, []).append(child)
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = [child for child in children.get(waiting.pop(), ()) if child not in found]
        found.update(new)
        waiting.extend(new)
    return found


def end_descendants(pid: int) -> None:
    """Kill all descendants of a process, including those that appear meanwhile."""
    for _ in range(200):
        found = descendants(pid)
        if not found:
            return
        for each in found:
            _send(each, signal.SIGKILL)
        time.sleep(0.01)


def end_all() -> None:
    """Kill all descendants of this process and wait for them, as its last action."""
    end_descendants(os.getpid())
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_tree(pid: int) -> None:
    """Kill a process and its descendants; it is stopped first, so that it can't start others."""
    _send(pid, signal.SIGSTOP)
    end_descendants(pid)
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _living() -> list[tuple[int, int]]:
    """Return the parent of each living process."""
    rows = _from_proc() if Path("/proc/self/stat").exists() else _from_ps()
    return [(pid, parent) for pid, parent, state in rows if not state.startswith("Z")]


def _from_proc() -> list[tuple[int, int, str]]:
    rows = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name of the program, in parentheses, may itself hold spaces.
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                rows.append((int(entry.name), int(parent), state))
    return rows


def _from_ps() -> list[tuple[int, int, str]]:
    command = ["ps", "-A", "-o", "pid=,ppid=,stat="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in listing.splitlines())
    return [(int(pid), int(parent), state) for pid, parent, state in rows]
