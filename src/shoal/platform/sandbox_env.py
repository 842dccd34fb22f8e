"""`SandboxEnv`: the environment variables, folders and isolation of sandboxes.

1. Sandboxes get a list of safe variables, so that a client's passwords and keys stay with it.
   Others must be named in the settings.
2. Each sandbox has a temporary folder, removed with it. Tasks of an embedded gateway work in the
   client's folder, as scripts do; those of a stand-alone gateway in the sandbox's folder.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from shoal.private import private_folder
from shoal.storage.embedded import runtime_folder
from shoal.system import ended

_SAFE = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH",
     "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX",
     "SSL_CERT_FILE", "SSL_CERT_DIR")
)  # fmt: skip
_SAFE_PREFIXES = ("LC_", "PYTHON", "XDG_", "OMP_", "OPENBLAS_", "MKL_", "CUDA_")
_OWN = "SHOAL_"
_TOLD = "SHOAL_ENVIRONMENT"
"""Names the environment that was deployed, which workers compare with the client's."""
_SECRET_PREFIXES = (_OWN, "AWS_")
_SWEEPS, _BETWEEN_SWEEPS = 20, 0.2
"""The processes that a killed zygote leaves end soon, but not at once."""
_SECRET_SUFFIXES = ("TOKEN", "PASSWORD", "PASSWD", "SECRET", "KEY", "CREDENTIALS")


@dataclass(frozen=True, slots=True)
class SandboxEnv:
    """What sandboxes get of the machine."""

    isolation: bool = True
    """Whether they are isolated from each other, where the system permits it."""
    own_folder: bool = False
    """Whether tasks work in the sandbox's folder instead of the client's."""
    variables: tuple[str, ...] = ()
    """Names or patterns of the variables that they get besides the safe ones."""

    def environment(self, found: Mapping[str, str]) -> dict[str, str]:
        """Those of these variables that sandboxes get."""
        return {n: v for n, v in found.items() if self._named(n) or _safe(n)}

    def _named(self, name: str) -> bool:
        """Whether a variable is named; `*` doesn't match Shoal's own, such as the token."""
        patterns = self.variables
        if name.startswith(_OWN):
            patterns = tuple(pattern for pattern in patterns if pattern.startswith(_OWN))
        return any(fnmatchcase(name, pattern) for pattern in patterns)


def _safe(name: str) -> bool:
    if name == _TOLD:
        return True
    if name.startswith(_SECRET_PREFIXES) or name.upper().endswith(_SECRET_SUFFIXES):
        return False
    return name in _SAFE or name.startswith(_SAFE_PREFIXES)


def variable_names(text: str) -> tuple[str, ...]:
    """The names and patterns in a comma-separated setting."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def hidden_folder() -> Path:
    """The user's folder that sandboxes can't see."""
    return private_folder(runtime_folder() / "hidden")


def home_of(hidden: str, number: int) -> Path:
    """The folder of a zygote's branch, which contains those of its sandboxes."""
    return Path(hidden, "sandboxes", str(number))


def sweep(hidden: str) -> None:
    """Delete the folders of branches that have ended."""
    root = private_folder(Path(hidden, "sandboxes"))
    for home in root.iterdir():
        if home.name.isdigit() and ended(int(home.name)):
            remove(home)


def remove(folder: Path) -> None:
    """Delete a sandbox's folder, whatever the sandbox has created in it."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder)
    if folder.exists():  # nested deeper than Python can follow
        import subprocess

        with contextlib.suppress(FileNotFoundError):  # a container may have no `rm`
            subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def sweep_soon(hidden: str) -> None:
    """Delete the folders of branches that are about to end; works in the background."""

    def sweeping() -> None:
        for _ in range(_SWEEPS):
            time.sleep(_BETWEEN_SWEEPS)
            with contextlib.suppress(OSError):  # another process may sweep, too
                sweep(hidden)

    threading.Thread(target=sweeping, name="shoal-sweeper", daemon=True).start()
