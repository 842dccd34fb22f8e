"""The user's modules on a worker that doesn't see the client's files.

A worker imports them from a folder of its own, into which it unpacks the archive that its run's
context names. A sandbox serves one session, whose name changes with the archive, so it has one
archive all its life, and fetches it once.
"""

from __future__ import annotations

import importlib
import io
import sys
from tempfile import TemporaryDirectory
from typing import Any

from shoal.platform.invocation import Invocation
from shoal.worker.heartbeat import alive

_unpacked: dict[str, TemporaryDirectory[str]] = {}
"""The folders of archives that this process imports modules from, by the archives' names."""


def use_project_code(invocation: Invocation, store: Any) -> None:
    """Import modules from the archive that a run's context names, if it names one.

    Args:
        invocation: The start of a worker.
        store: Renews the worker's lease during a long transfer.
    """
    context = invocation.context
    name = context.code.archive
    if not name or name in _unpacked:
        return
    with alive(store, invocation):
        folder = _fetched(context.store, name, context.settings.latency)
    _unpacked[name] = folder
    sys.path.insert(0, folder.name)
    importlib.invalidate_caches()


def _fetched(store: str, name: str, latency: float) -> TemporaryDirectory[str]:
    """An archive of the store, unpacked into a folder."""
    import zipfile

    from shoal.storage.code import CodeServer

    server = CodeServer(store, latency)
    try:
        archive = server.fetch(name)
    finally:
        server.disconnect()
    folder = TemporaryDirectory(prefix="shoal-code-", ignore_cleanup_errors=True)
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        packed.extractall(folder.name)
    return folder
