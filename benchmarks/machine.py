"""What a benchmark ran on."""

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
