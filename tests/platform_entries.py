"""What sandboxes do in tests of platforms: what a job's part says, noted in a file.

A zygote imports this module, so it has to be light.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

Job = dict[str, Any]

TASK = 7
"""The number of the task that every worker says it is running."""
_LONGEST = 60.0


def act(job: Job, running: Any) -> bool:
    """Do what the part says, a word and its argument."""
    invocation = job["invocation"]
    folder = Path(invocation["folder"])
    word, _, argument = (invocation["part"] or "pass").partition(" ")
    note(job, "began")
    running.set(0, TASK)
    if word == "token":
        (folder / argument).write_text(job["token"])
        word = "pass"
    reusable = _ACTIONS[word](folder, argument)
    running.clear(0)
    note(job, "ended")
    return reusable is not False


def nothing(job: Job, running: Any) -> bool:
    """Be done at once."""
    return True


def note(job: Job, event: str, **facts: Any) -> None:
    """Append a line to the notes, in one write."""
    invocation = job["invocation"]
    line = {
        "event": event,
        "run": invocation["run"],
        "worker": invocation["worker"],
        "sandbox": threading.get_native_id(),
        "start": job["start"],
        **facts,
    }
    descriptor = os.open(
        Path(invocation["folder"]) / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def read_notes(folder: Path, event: str = "") -> list[dict[str, Any]]:
    """What has been noted so far."""
    path = folder / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [line for line in found if event in ("", line["event"])]


def _await(folder: Path, name: str) -> None:
    deadline = time.monotonic() + _LONGEST
    while not (folder / name).exists() and time.monotonic() < deadline:
        time.sleep(0.002)


def _print(folder: Path, text: str) -> None:
    print(text)
    print(text.upper(), file=sys.stderr)


def _fail(folder: Path, text: str) -> None:
    raise RuntimeError(text)


def _spoil(folder: Path, text: str) -> bool:
    return False


def _exit(folder: Path, code: str) -> None:
    os._exit(int(code))


def _close_streams(folder: Path, text: str) -> None:
    sys.stdout.close()
    sys.stderr = None


def _flood(folder: Path, count: str) -> None:
    """Print lines, and then much without an end of line."""
    for number in range(int(count)):
        print(f"line {number}")
    sys.stdout.write("x" * 1_000_000)


def _sockets() -> list[int]:
    """The descriptors of this process's sockets: that to the gateway is among them."""
    numbers = (int(name) for name in os.listdir("/proc/self/fd"))
    return [n for n in numbers if stat.S_ISSOCK(_mode(n))]


def _mode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_mode
    except OSError:
        return 0


def _say(folder: Path, text: str) -> None:
    """Send bytes, in hexadecimal, to the gateway; and stay for a while if there is more to say."""
    data, _, then = text.partition(" ")
    for descriptor in _sockets():
        os.write(descriptor, bytes.fromhex(data))
    if then:
        _await(folder, then)


def _hang_up(folder: Path, name: str) -> None:
    for descriptor in _sockets():
        os.close(descriptor)
    _await(folder, name)


def _dig(folder: Path, depth: str) -> None:
    """Make folders in folders in the sandbox's own."""
    import tempfile

    os.chdir(tempfile.gettempdir())
    for _ in range(int(depth)):
        os.mkdir("deep")
        os.chdir("deep")


def _do(folder: Path, code: str) -> None:
    """Run a program in this process, as a task may."""
    exec(code, {})


def _raise_children(folder: Path, seconds: str) -> None:
    """Start a process that starts a process."""
    program = f"import subprocess; subprocess.run(['sleep', '{seconds}'])"
    subprocess.Popen([sys.executable, "-S", "-c", program])
    (folder / "raised").touch()
    time.sleep(float(seconds))


def _draw(folder: Path, name: str) -> None:
    """Write down random numbers from both well-known sources."""
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
    """Try to move to the groups at the top, wherever they are mounted; write down which worked."""
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
    """Write down what a sandbox finds around it, and leave a temporary file."""
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
        "homes": os.listdir(hidden / "sandboxes"),
        "beside": os.listdir(Path(temporary).parent),
        "writable": os.access(temporary, os.W_OK),
        "others_writable": os.access(Path(temporary).parent, os.W_OK),
    }
    (folder / name).write_text(json.dumps(found))


def _spy(folder: Path, name: str) -> None:
    """Try to find, signal and read what the sandbox named in a file has."""
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
    _await(folder, "go")


def _signal(folder: Path, pid: str) -> None:
    """Send every deadly signal to a process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        os.kill(int(pid), number)


def _grow(folder: Path, megabytes: str) -> None:
    _hold(bytearray(int(megabytes) * 1024 * 1024))


def _hold(memory: bytearray) -> None:
    for position in range(0, len(memory), 4096):
        memory[position] = 1


def _pass(folder: Path, text: str) -> None:
    """Nothing."""


_ACTIONS = {
    "await": _await,
    "close": _close_streams,
    "dig": _dig,
    "do": _do,
    "draw": _draw,
    "exit": _exit,
    "fail": _fail,
    "flood": _flood,
    "grow": _grow,
    "hang-up": _hang_up,
    "leave": _leave_groups,
    "limits": _show_limits,
    "look": _look,
    "pass": _pass,
    "print": _print,
    "raise": _raise_children,
    "say": _say,
    "signal": _signal,
    "spoil": _spoil,
    "spy": _spy,
    "stay": _look_and_stay,
}
