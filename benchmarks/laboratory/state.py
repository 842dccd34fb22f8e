"""Inspect the traces of runs: keys in the store, processes, folders and control groups."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from processes import descendants

from laboratory.services import GatewayProcess, StoreProcess
from shoal.errors import ShoalError
from shoal.platform import limits
from shoal.system import shared_folder

_SHARED = shared_folder()
_LINES = 80
_LOGS = 6


def keys_by_run(store: StoreProcess) -> dict[str, list[str]]:
    """Return the keys of runs in the store."""
    found: dict[str, list[str]] = {}
    for key in sorted(str(key, "utf-8") for key in store.ask("KEYS", "shoal:{*")):
        run = key.partition("{")[2].partition("}")[0]
        if not run.startswith(("history-", "cache-", "code-")):  # they outlive runs
            found.setdefault(run, []).append(key)
    return found


def shared_folders(runs: set[str]) -> list[str]:
    """Return the folders of runs in shared memory."""
    return [run for run in sorted(runs) if (_SHARED / run).exists()]


def groups(zygotes: set[int]) -> list[str]:
    """Return the control groups of the sandboxes of these zygotes."""
    found = limits.detect()
    places = [] if found.kind == "rlimit" else {found.cpu, found.memory}
    named = (path.name for place in places for path in place.glob("shoal-*-*"))
    return sorted(name for name in named if name.split("-")[1] in map(str, zygotes))


def zombies(below: int) -> list[int]:
    """Return the zombie descendants of a process."""
    living = descendants(below) | {below}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z" and int(parent) in living:
                    found.append(int(entry.name))
    return found


def described(store: StoreProcess, gateway: GatewayProcess, folder: Path) -> str:
    """Collect everything that explains why runs hang, including each process's stack."""
    status = _tried(gateway.status)
    lines = [f"gateway: {status}"]
    for run in status["runs"] if isinstance(status, dict) else ():
        lines += of_run(run, store)
    for pid in sorted(descendants(os.getpid()) - {store.process.pid, *gateway.zygotes()}):
        with contextlib.suppress(OSError):
            state = re.findall(r"State:.*", Path(f"/proc/{pid}/status").read_text())
            lines.append(f"process {pid}: {state}")
            os.kill(pid, signal.SIGUSR1)
    time.sleep(1.0)
    for log in sorted(folder.rglob("*.*l*"), key=lambda path: path.stat().st_mtime)[-_LOGS:]:
        lines += [f"{log.name}:", *log.read_text(errors="replace").splitlines()[-_LINES:]]
    return "\n".join(lines)


def of_run(run: str, store: StoreProcess) -> list[str]:
    """Return a run's progress according to the store."""
    lines = [f"run {run}, the store's time {_tried(lambda: store.ask('TIME'))}"]
    for key in _tried(lambda: keys_by_run(store).get(run, [])) or ["nothing is in the store"]:
        kind = str(_tried(lambda key=key: store.ask("TYPE", key)))
        if key.endswith((":state", ":leases", ":progress")):
            lines.append(f"{key}: {_tried(lambda key=key: store.ask('HGETALL', key))}")
        elif key.endswith(":marks"):
            lines.append(f"{key}: {_tried(lambda key=key: store.ask('HKEYS', key))}")
        elif ":mailbox:" in key:
            letters = _tried(lambda key=key: store.ask("XRANGE", key, "-", "+"))
            named = [(bytes(i), bytes(f[1]), bytes(f[3])) for i, f in letters]
            lines.append(f"{key}: {named}")
        else:
            lines.append(f"{key}: {kind}")
    return lines


def _tried(look: Any) -> Any:
    try:
        return look()
    except ShoalError as error:
        return str(error)
