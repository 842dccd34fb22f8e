"""What an experiment or a benchmark ran on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def cpu_name() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def memory_gb() -> float:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def version_of(package: str) -> str:
    """An installed package's version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def described() -> str:
    """The machine and the software, in a line."""
    return (
        f"{cpu_name()}, {os.cpu_count()} cores, {memory_gb():.0f} GB, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}, shoal {version_of('shoal')}"
    )
