"""Describe the machine that an experiment or a benchmark runs on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from shoal.system import memory_nbytes, processor


def version_of(package: str) -> str:
    """Return an installed package's version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def described() -> str:
    """Describe the machine and the software in one line."""
    return (
        f"{processor()}, {os.cpu_count()} cores, {memory_nbytes() / 2**30:.0f} GB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"shoal {version_of('shoal')}"
    )
