"""CPU and memory limits of a sandbox: control groups where permitted, else resource limits.

Groups are created below the process's own, v1 or v2, whichever has the controllers. Resource limits
make a task raise `MemoryError`; its sandbox then leaves a note and ends itself, so that its worker
gets more memory as with groups. On a system without groups that ignores resource limits, a sandbox
watches its own memory, and ends itself when it exceeds its limit.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from shoal import system
from shoal.types import Resources

_PERIOD = 100_000
_LOOK_SECONDS = 0.05
_TRUSTED_MB = 2048
"""Offered even if a small machine has less: it is the default of a worker."""

_OTHER_FILES = 256
"""Files that a process has open besides."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """How this machine limits sandboxes."""

    kind: str
    """`cgroup v1`, `cgroup v2`, `rlimit` or `watched`."""
    cpu: Path
    """The folder of the CPU groups; with v2 the same as `memory`."""
    memory: Path
    """The folder of the memory groups; without groups, where a sandbox leaves a note."""
    reason: str = ""
    """Why there are no groups."""

    @property
    def grouped(self) -> bool:
        """Whether there are control groups."""
        return self.kind.startswith("cgroup")

    @property
    def warning(self) -> str:
        """A warning if the system supports groups but permits none; else empty."""
        if self.kind != "rlimit":
            return ""
        return (
            f"no control groups ({self.reason}): sandboxes have no CPU limit, and memory is "
            "limited by the process's data size"
        )

    def of_sandbox(self, home: Path) -> SandboxLimits:
        """The limits of a sandbox: without groups, its notes are in the folder that it may use."""
        return self if self.grouped else replace(self, cpu=home, memory=home)

    def _folders(self, name: str) -> list[Path]:
        if not self.grouped:
            return []
        return list(dict.fromkeys((self.cpu / name, self.memory / name)))

    def enter(self, name: str, resources: Resources) -> None:
        """Put this process into a new group with these limits."""
        nbytes = resources.memory_mb * 1024 * 1024
        quota = max(1000, round(resources.cpu_share * _PERIOD))
        if self.kind == "rlimit":
            resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
            global _note
            _note = self.memory / name
            return
        if self.kind == "watched":
            watch = partial(_watch, nbytes, self.memory / name)
            threading.Thread(target=watch, name="shoal-memory", daemon=True).start()
            return
        for folder in self._folders(name):
            folder.mkdir(exist_ok=True)
        if self.kind == "cgroup v2":
            (self.cpu / name / "cpu.max").write_text(f"{quota} {_PERIOD}")
            (self.memory / name / "memory.max").write_text(str(nbytes))
            with contextlib.suppress(OSError):
                (self.memory / name / "memory.swap.max").write_text("0")
        else:
            (self.cpu / name / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (self.cpu / name / "cpu.cfs_quota_us").write_text(str(quota))
            (self.memory / name / "memory.limit_in_bytes").write_text(str(nbytes))
        for folder in self._folders(name):
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def prepare(self) -> None:
        """Note how often memory ran out before this process forked a sandbox."""
        if self.kind == "rlimit":
            _group_killed()

    def ran_out_of_memory(self, name: str) -> bool:
        """Whether a process of the group was killed for its memory."""
        if not self.grouped:
            return (self.memory / name).exists() or (self.kind == "rlimit" and _group_killed())
        file = "memory.events" if self.kind == "cgroup v2" else "memory.oom_control"
        try:
            return _oom_kills(self.memory / name / file) > 0
        except OSError:
            return False

    def remove(self, name: str) -> None:
        """Kill what is left in the group and delete it."""
        if not self.grouped:
            (self.memory / name).unlink(missing_ok=True)
        for folder in self._folders(name):
            for _ in range(100):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    with contextlib.suppress(OSError):
                        for line in (folder / "cgroup.procs").read_text().split():
                            os.kill(int(line), signal.SIGKILL)
                    time.sleep(0.002)
                else:
                    break

    def sweep(self) -> None:
        """Delete the empty groups that killed zygotes left."""
        for root in {self.cpu, self.memory} if self.grouped else ():
            for folder in root.glob("shoal-*-*"):
                pid = folder.name.split("-")[1]
                if pid.isdigit() and not system.alive(int(pid)):
                    with contextlib.suppress(OSError):
                        folder.rmdir()


def machine_memory_mb() -> int:
    """The most memory that a sandbox of this machine may be promised."""
    return max(_TRUSTED_MB, system.memory_nbytes() // 2**20)


def openable(count: int, files: int) -> int:
    """How many objects of `files` files each this process can have open, up to `count`.

    Raises the process's limit of open files as far as permitted.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OTHER_FILES + count * files
    if needed > soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == resource.RLIM_INFINITY else min(count, (soft - _OTHER_FILES) // files)


def detect() -> SandboxLimits:
    """How this process can limit sandboxes on this machine."""
    if not system.LIMITS_DATA:
        return SandboxLimits("watched", Path(), Path(), "only Linux has them")
    reasons = []
    for found in (_version_1(), _version_2()):
        if isinstance(found, str):
            reasons.append(found)
            continue
        problem = _problem(found)
        if not problem:
            return found
        reasons.append(f"{found.kind}: {problem}")
    return SandboxLimits("rlimit", Path(), Path(), "; ".join(reasons))


_kills: int | None = None
"""How many processes of this process's own group were killed for their memory, at the last look."""


def _group_killed() -> bool:
    """Whether another process of this one's group, such as a container, was killed for memory."""
    global _kills
    before, _kills = _kills, _count_kills()
    return before is not None and _kills > before


def _count_kills() -> int:
    own, mounts = _own_groups(), _mounts()
    for controller, file in (("memory", "memory.oom_control"), ("", "memory.events")):
        point = mounts.get(controller)
        for folder in (point / own.get(controller, ""), point) if point else ():
            with contextlib.suppress(OSError):  # in a container, the group is at the mount
                return _oom_kills(folder / file)
    return 0


def _oom_kills(file: Path) -> int:
    found = [line.split() for line in file.read_text().splitlines()]
    return sum(int(count) for name, count, *_ in found if name == "oom_kill")


_note: Path | None = None
"""Where this sandbox notes that a resource limit was in the way; None: it has none."""


def end_out_of_memory() -> None:
    """End this sandbox with a note if a task failed for its resource limit; else do nothing."""
    if _note is not None:
        _end_with(_note)


def _end_with(note: Path) -> None:
    note.touch(mode=0o600)
    os.killpg(0, signal.SIGKILL)


def _watch(nbytes: int, note: Path) -> None:
    """End this process and its children once it exceeds its memory; leave a note first."""
    while system.peak_nbytes() <= nbytes:
        time.sleep(_LOOK_SECONDS)
    _end_with(note)


def _problem(limits: SandboxLimits) -> str:
    """Why groups can't be created there; empty if they can."""
    name = f"shoal-probe-{os.getpid()}"
    pid = os.fork()
    if pid == 0:
        try:
            limits.enter(name, Resources(256, 1.0))
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    limits.remove(name)
    return os.strerror(code) if code else ""


def _own_groups() -> dict[str, str]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    own: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path.strip("/")
    return own


def group_mounts() -> list[tuple[str, Path, str]]:
    """Mounts of control groups: the type (`cgroup` or `cgroup2`), the folder, the options."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return []
    found = [line.split() for line in lines]
    return [
        (kind, Path(point), options)
        for _, point, kind, options, *_ in found
        if kind in ("cgroup", "cgroup2")
    ]


def _mounts() -> dict[str, Path]:
    """The folders of v1's controllers by name, and of v2 under an empty name."""
    mounts: dict[str, Path] = {}
    for kind, point, options in group_mounts():
        if kind == "cgroup2":
            mounts[""] = point
            continue
        for option in options.split(","):
            mounts.setdefault(option, point)
    return mounts


def _version_1() -> SandboxLimits | str:
    own, mounts = _own_groups(), _mounts()
    if not {"cpu", "memory"} <= own.keys() & mounts.keys():
        return "cgroup v1 has no cpu and memory controllers here"
    return SandboxLimits("cgroup v1", mounts["cpu"] / own["cpu"], mounts["memory"] / own["memory"])


def _version_2() -> SandboxLimits | str:
    own, mounts = _own_groups(), _mounts()
    if "" not in mounts or "" not in own:
        return "cgroup v2 isn't mounted"
    folder = mounts[""] / own[""]
    try:
        offered = (folder / "cgroup.controllers").read_text().split()
        enabled = (folder / "cgroup.subtree_control").read_text().split()
        if not {"cpu", "memory"} <= set(offered):
            return "cgroup v2 has no cpu and memory controllers here"
        if not {"cpu", "memory"} <= set(enabled):
            (folder / "cgroup.subtree_control").write_text("+cpu +memory")
    except OSError as error:
        return f"cgroup v2: {error.strerror}"
    return SandboxLimits("cgroup v2", folder, folder)
