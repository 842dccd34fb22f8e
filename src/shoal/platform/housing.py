"""`Housing`: what a gateway's sandboxes get of the machine: variables, folders, a view of others.

1. Variables come from a list of harmless ones, so a client's passwords and keys stay with it;
   further ones have to be named in the settings.
2. Each sandbox has a folder of its own for temporary files, removed with it. Tasks of an embedded
   gateway work in the client's folder, as scripts do; those of a stand-alone one in their own.
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

_HARMLESS = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH",
     "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX",
     "SSL_CERT_FILE", "SSL_CERT_DIR")
)  # fmt: skip
_HARMLESS_BEGINNINGS = ("LC_", "PYTHON", "XDG_", "OMP_", "OPENBLAS_", "MKL_", "CUDA_")
_OWN = "SHOAL_"
_SECRET_BEGINNINGS = (_OWN, "AWS_")
_SWEEPS, _BETWEEN_SWEEPS = 20, 0.2
"""What is left of a zygote that was killed ends within a moment, but not at once."""
_SECRET_ENDS = ("TOKEN", "PASSWORD", "PASSWD", "SECRET", "KEY", "CREDENTIALS")


@dataclass(frozen=True, slots=True)
class Housing:
    """What sandboxes get."""

    isolation: bool = True
    """Whether they are kept from seeing each other, where that is possible."""
    own_folder: bool = False
    """Whether tasks work in the sandbox's folder, and not in the client's."""
    variables: tuple[str, ...] = ()
    """Names of environment variables that they get besides the harmless ones, or patterns."""

    def environment(self, found: Mapping[str, str]) -> dict[str, str]:
        """Of these variables, those that sandboxes get."""
        return {n: v for n, v in found.items() if self._named(n) or _harmless(n)}

    def _named(self, name: str) -> bool:
        """Whether a variable is asked for; Shoal's own, such as the token, not by a mere `*`."""
        patterns = self.variables
        if name.startswith(_OWN):
            patterns = tuple(pattern for pattern in patterns if pattern.startswith(_OWN))
        return any(fnmatchcase(name, pattern) for pattern in patterns)


def _harmless(name: str) -> bool:
    if name.startswith(_SECRET_BEGINNINGS) or name.upper().endswith(_SECRET_ENDS):
        return False
    return name in _HARMLESS or name.startswith(_HARMLESS_BEGINNINGS)


def variable_names(text: str) -> tuple[str, ...]:
    """The names and patterns in a setting, between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def hidden_folder() -> Path:
    """The user's folder for what no sandbox is to see."""
    return private_folder(runtime_folder() / "hidden")


def home_of(hidden: str, number: int) -> Path:
    """The folder of a zygote's branch: those of its sandboxes are in it."""
    return Path(hidden, "sandboxes", str(number))


def sweep(hidden: str) -> None:
    """Delete the folders of branches that have ended."""
    root = private_folder(Path(hidden, "sandboxes"))
    for home in root.iterdir():
        if home.name.isdigit() and ended(int(home.name)):
            remove(home)


def remove(folder: Path) -> None:
    """Delete a sandbox's folder, whatever it has made in there."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder)
    if folder.exists():  # folders in folders, deeper than Python follows them
        import subprocess

        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def sweep_soon(hidden: str) -> None:
    """Delete the folders of branches that are about to end, in the background."""

    def sweeping() -> None:
        for _ in range(_SWEEPS):
            time.sleep(_BETWEEN_SWEEPS)
            with contextlib.suppress(OSError):  # somebody else may sweep, too
                sweep(hidden)

    threading.Thread(target=sweeping, name="shoal-sweeper", daemon=True).start()
