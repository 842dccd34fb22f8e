"""CPU and memory limits of a sandbox: control groups where permitted, else resource limits.

Groups are made below the process's own, v1 or v2, whichever has the controllers.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from shoal.types import Resources

_PERIOD = 100_000
_TRUSTED_MB = 2048
"""What a worker has by default may be more than a small machine has."""

_OTHER_FILES = 256
"""What a process has open besides."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How this machine limits sandboxes."""

    kind: str
    """`cgroup v1`, `cgroup v2` or `rlimit`."""
    cpu: Path
    """Where groups for CPU are made; with v2 the same as `memory`."""
    memory: Path
    reason: str = ""
    """Why there are no groups, with `rlimit`."""

    def _folders(self, name: str) -> list[Path]:
        if self.kind == "rlimit":
            return []
        return list(dict.fromkeys((self.cpu / name, self.memory / name)))

    def enter(self, name: str, resources: Resources) -> None:
        """Put this process into a new group with these limits."""
        nbytes = resources.memory_mb * 1024 * 1024
        quota = max(1000, round(resources.cpu_share * _PERIOD))
        if self.kind == "rlimit":
            resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
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

    def ran_out_of_memory(self, name: str) -> bool:
        """Whether the system killed a process of the group for its memory."""
        if self.kind == "rlimit":
            return False
        file = "memory.events" if self.kind == "cgroup v2" else "memory.oom_control"
        try:
            lines = (self.memory / name / file).read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def remove(self, name: str) -> None:
        """Kill what is left in the group and delete it."""
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
        """Delete the empty groups of zygotes that were killed."""
        for root in {self.cpu, self.memory} if self.kind != "rlimit" else ():
            for folder in root.glob("shoal-*-*"):
                pid = folder.name.split("-")[1]
                if pid.isdigit() and not Path("/proc", pid).exists():
                    with contextlib.suppress(OSError):
                        folder.rmdir()


def machine_memory_mb() -> int:
    """The most memory that it makes sense to promise to a sandbox of this machine."""
    nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(_TRUSTED_MB, nbytes // 2**20)


def openable(count: int, files: int) -> int:
    """How many things of so many files each this process can have open, up to `count`.

    It raises its own limit of open files as far as it may.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OTHER_FILES + count * files
    if needed > soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == resource.RLIM_INFINITY else min(count, (soft - _OTHER_FILES) // files)


def detect() -> Limits:
    """What this process may do on this machine."""
    reasons = []
    for found in (_version_1(), _version_2()):
        if isinstance(found, str):
            reasons.append(found)
            continue
        problem = _problem(found)
        if not problem:
            return found
        reasons.append(f"{found.kind}: {problem}")
    return Limits("rlimit", Path(), Path(), "; ".join(reasons))


def _problem(limits: Limits) -> str:
    """Why groups can't be made there; empty if they can."""
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
    """Where control groups are mounted: as `cgroup` or `cgroup2`, the folder, the options."""
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
    """Where the controllers of v1 are mounted, and under an empty name v2."""
    mounts: dict[str, Path] = {}
    for kind, point, options in group_mounts():
        if kind == "cgroup2":
            mounts[""] = point
            continue
        for option in options.split(","):
            mounts.setdefault(option, point)
    return mounts


def _version_1() -> Limits | str:
    own, mounts = _own_groups(), _mounts()
    if not {"cpu", "memory"} <= own.keys() & mounts.keys():
        return "cgroup v1 has no cpu and memory controllers here"
    return Limits("cgroup v1", mounts["cpu"] / own["cpu"], mounts["memory"] / own["memory"])


def _version_2() -> Limits | str:
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
    return Limits("cgroup v2", folder, folder)
