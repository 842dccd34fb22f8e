"""The workers' entry point in tests of platforms: it does what the part says, and notes it.

A zygote imports this module, so it must import little.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.testing.platform_entry import ACTIONS, TASK, await_file, perform, read_notes

__all__ = ["TASK", "act", "nothing", "read_notes"]


_WRITTEN = ("token", "served")
"""What of a message an action of that name writes to a file."""


def act(job: Any, running: Any) -> bool:
    """Do what the part says, a word and its argument."""

    def write(word: str) -> Callable[[Path, str], None]:
        def written(folder: Path, name: str) -> None:
            (folder / name).write_text(str(getattr(job, word)))

        return written

    return perform(job, running, {**_ACTIONS, **{word: write(word) for word in _WRITTEN}})


def nothing(job: Any, running: Any) -> bool:
    """Return at once."""
    return True


def _exit(folder: Path, code: str) -> None:
    os._exit(int(code))


def _close_streams(folder: Path, text: str) -> None:
    sys.stdout.close()
    sys.stderr = None


def _flood(folder: Path, count: str) -> None:
    """Print lines, then a lot of text without a newline."""
    for number in range(int(count)):
        print(f"line {number}")
    sys.stdout.write("x" * 1_000_000)


def _sockets() -> list[int]:
    """Return the descriptors of this process's sockets, which include the one to the gateway."""
    numbers = (int(name) for name in os.listdir("/proc/self/fd"))
    return [n for n in numbers if stat.S_ISSOCK(_mode(n))]


def _mode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_mode
    except OSError:
        return 0


def _say(folder: Path, text: str) -> None:
    """Send bytes, given in hexadecimal, to the gateway; then wait for a file if one is named."""
    data, _, then = text.partition(" ")
    for descriptor in _sockets():
        os.write(descriptor, bytes.fromhex(data))
    if then:
        await_file(folder, then)


def _hang_up(folder: Path, name: str) -> None:
    for descriptor in _sockets():
        os.close(descriptor)
    await_file(folder, name)


def _dig(folder: Path, depth: str) -> None:
    """Create deeply nested folders in the sandbox's folder."""
    import tempfile

    os.chdir(tempfile.gettempdir())
    for _ in range(int(depth)):
        os.mkdir("deep")
        os.chdir("deep")


def _do(folder: Path, code: str) -> None:
    """Execute code in this process, as a task may."""
    exec(code, {})


def _raise_children(folder: Path, seconds: str) -> None:
    """Start a process that starts a process."""
    program = f"import subprocess; subprocess.run(['sleep', '{seconds}'])"
    subprocess.Popen([sys.executable, "-S", "-c", program])
    (folder / "raised").touch()
    time.sleep(float(seconds))


def _collect(folder: Path, name: str) -> None:
    """Note how the garbage collector is, and how a module that was preloaded found it."""
    found = sys.modules["remembers_collector"].ENABLED
    (folder / name).write_text(f"{found} {gc.isenabled()} {gc.get_threshold()}")


def _draw(folder: Path, name: str) -> None:
    """Note random numbers from `random` and numpy."""
    import random

    import numpy

    numbers = f"{random.random()} {numpy.random.random()}"
    (folder / f"{name}-{os.getpid()}").write_text(numbers)


def _show_limits(folder: Path, name: str) -> None:
    import resource

    limits = {
        "groups": Path("/proc/self/cgroup").read_text(),
        "data": resource.getrlimit(resource.RLIMIT_DATA)[0],
        "threads": os.environ["OMP_NUM_THREADS"],
    }
    (folder / name).write_text(json.dumps(limits))


def _leave_groups(folder: Path, name: str) -> None:
    """Try to move to the top control groups, wherever they are mounted; note which worked."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            try:
                (Path(point) / "cgroup.procs").write_text(str(os.getpid()))
                found.append(point)
            except OSError:
                continue
    (folder / name).write_text(json.dumps(found))


def _look(folder: Path, name: str) -> None:
    """Note what a sandbox finds around it, and create a temporary file."""
    import tempfile

    temporary = tempfile.gettempdir()
    hidden = Path(temporary).parents[2]
    (Path(temporary) / "left").touch()
    found = {
        "environment": dict(os.environ),
        "status": Path("/proc/self/status").read_text(),
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "processes": [int(entry) for entry in os.listdir("/proc") if entry.isdigit()],
        "temporary": temporary,
        "hidden": os.listdir(hidden),
        "folders": os.listdir(hidden / "sandboxes"),
        "beside": os.listdir(Path(temporary).parent),
        "writable": os.access(temporary, os.W_OK),
        "others_writable": os.access(Path(temporary).parent, os.W_OK),
    }
    (folder / name).write_text(json.dumps(found))


def _spy(folder: Path, name: str) -> None:
    """Try to find, signal and read the sandbox that a file names."""
    other = json.loads((folder / name).read_text())
    found: dict[str, Any] = {"files": os.path.exists(other["temporary"])}
    for way, reach in (("kill", os.kill), ("killpg", os.killpg)):
        try:
            reach(other["pid"], 0)
            found[way] = True
        except ProcessLookupError:
            found[way] = False
    found["processes"] = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    found["pid"] = os.getpid()
    (folder / f"{name}-spied").write_text(json.dumps(found))


def _look_and_stay(folder: Path, name: str) -> None:
    _look(folder, f"{name}.unfinished")
    (folder / f"{name}.unfinished").rename(folder / name)
    await_file(folder, "go")


def _signal(folder: Path, pid: str) -> None:
    """Send every fatal signal to a process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        os.kill(int(pid), number)


def _grow(folder: Path, megabytes: str) -> None:
    _hold(bytearray(int(megabytes) * 1024 * 1024))


def _hold(memory: bytearray) -> None:
    for position in range(0, len(memory), 4096):
        memory[position] = 1


_ACTIONS = {
    **ACTIONS,
    "close": _close_streams,
    "dig": _dig,
    "do": _do,
    "collect": _collect,
    "draw": _draw,
    "exit": _exit,
    "flood": _flood,
    "grow": _grow,
    "hang-up": _hang_up,
    "leave": _leave_groups,
    "limits": _show_limits,
    "look": _look,
    "raise": _raise_children,
    "say": _say,
    "signal": _signal,
    "spy": _spy,
    "stay": _look_and_stay,
}
