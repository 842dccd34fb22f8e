"""A `shoal gateway` that sees neither a folder of this machine nor its shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.storage.embedded import EmbeddedServer
from standing_gateway import StandingGateway

_HIDE = """
mount --bind {boot} /proc/sys/kernel/random/boot_id
mount -t tmpfs none /dev/shm
mount -t tmpfs none {hidden}
exec "$0" "$@"
"""
"""Makes another machine of this one, as far as Shoal can tell."""


@contextmanager
def gateway_without_shared_files(folder: Path, hidden: Path) -> Iterator[dict[str, str]]:
    """The settings, as variables, of clients on a gateway from which a folder is hidden."""
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("only root can hide folders from a gateway, and not in every container")
    boot = folder / "boot_id"
    boot.write_text("another-machine\n")
    script = "set -e" + _HIDE.format(boot=boot, hidden=hidden)
    command = ("unshare", "-m", "sh", "-c", script, sys.executable)
    gateway, server = StandingGateway(folder, command=command), EmbeddedServer()
    try:
        yield {
            "SHOAL_STORE": server.url,
            "SHOAL_PLATFORM": gateway.url,
            "SHOAL_FOLDER": str(folder / "d"),
        }
    finally:
        gateway.end()
        server.close()
