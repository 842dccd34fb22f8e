"""The Python environment of a process: its versions, how they must agree, and its name.

1. Python must agree in major and minor version, because code that travels by value is bytecode.
   Shoal must be the same version, because what client and workers exchange may change with each.
2. An installed package that the functions use must agree in major and minor version. A difference
   beyond that is a warning in the run's log.
3. The machine matters only to compiled modules of the user that travel. All else is portable, so a
   client on a Mac may use workers on Linux.
4. An environment that `shoal deploy` made has a name: a hash of Python's and Shoal's versions and
   of the packages that were deployed. A client that deployed it knows which name the same packages
   have now; workers with another name are refused.
5. A worker compares before it unpickles anything, once for each environment that it is sent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from shoal.errors import EnvironmentMismatch
from shoal.platform.invocation import PythonEnvironment

ENVIRONMENT_VARIABLE = "SHOAL_ENVIRONMENT"
"""Has, in what `shoal deploy` made, the name of the environment."""

_SIGNIFICANT = 2
"""The components of a version that must agree: major and minor."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that client and workers have in different versions."""

    what: str
    wanted: str
    """The client's version."""
    found: str
    """The workers' version; empty: they have none."""

    @property
    def severe(self) -> bool:
        """Whether the workers can't be expected to run the client's code."""
        if self.what in _SETTLED or not self.found:
            return True
        return _significant(self.wanted) != _significant(self.found)

    def __str__(self) -> str:
        if not self.found:
            return f"no {self.what} instead of {self.wanted}"
        return f"{self.what} {self.found} instead of {self.wanted}"


_PYTHON, _SHOAL, _MACHINE, _NAME = "Python", "Shoal", "CPU and C library", "environment"
_SETTLED = (_PYTHON, _SHOAL, _MACHINE, _NAME)
"""What must be equal."""


def _significant(version: str) -> list[str]:
    return version.partition("+")[0].split(".")[:_SIGNIFICANT]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a client expects of the environment that a platform's workers were deployed with."""

    name: str = ""
    """Its name, if it was made from what the client has now; empty: unknown."""
    renewal: str = ""
    """The command that deploys it again; empty: none does."""


ANY = Expected()
"""The environment of workers of which nothing is expected but the client's versions."""


def client_environment(expected: Expected) -> PythonEnvironment:
    """What workers must match that weren't forked from this process's environment."""
    return replace(this_environment(), name=expected.name, renewal=expected.renewal)


def minor_of(version: str) -> str:
    """A version of Python without its last component, such as 3.11."""
    return ".".join(version.split(".")[:_SIGNIFICANT])


def this_environment(packages: Iterable[str] = (), *, compiled: bool = False) -> PythonEnvironment:
    """The environment of this process.

    Args:
        packages: The installed packages whose versions matter; missing ones are left out.
        compiled: Whether compiled modules are to run elsewhere.
    """
    found = {name: version for name in packages if (version := version_of(name))}
    return PythonEnvironment(
        python="{}.{}".format(*sys.version_info),
        shoal=sys.modules["shoal"].__version__,  # an import would point up
        machine=this_machine() if compiled else "",
        packages=found,
    )


def version_of(package: str) -> str:
    """The version of an installed package, by the name that pip knows; empty: it is missing."""
    from importlib import metadata

    try:
        return metadata.version(package) or ""
    except metadata.PackageNotFoundError:
        return ""


def this_machine() -> str:
    """The CPU architecture and C library of this process, such as `x86_64-linux-gnu`."""
    system = getattr(sys.implementation, "_multiarch", sys.platform)
    return system if "-" in system else f"{os.uname().machine}-{system}"


def differences(wanted: PythonEnvironment, found: PythonEnvironment) -> list[Difference]:
    """What differs between the client's environment and that of workers."""
    compared = [(_PYTHON, wanted.python, found.python), (_SHOAL, wanted.shoal, found.shoal)]
    if wanted.machine:
        compared.append((_MACHINE, wanted.machine, found.machine))
    for name, version in sorted(wanted.packages.items()):
        compared.append((name, version, found.packages.get(name, "")))
    if wanted.name and found.name:
        compared.append((_NAME, wanted.name, found.name))
    return [Difference(what, here, there) for what, here, there in compared if here != there]


def mismatch(
    wanted: PythonEnvironment, found: PythonEnvironment, where: str
) -> EnvironmentMismatch | None:
    """The error that says what differs and how to fix it; None if nothing severe does.

    Args:
        wanted: The client's environment.
        found: That of the workers.
        where: Where the workers are.
    """
    severe = [each for each in differences(wanted, found) if each.severe]
    if not severe:
        return None
    severe = [each for each in severe if each.what != _NAME] or severe  # the cause is enough
    listed = ", ".join(map(str, severe))
    return EnvironmentMismatch(
        f"The workers {where} can't run this client's code: they have {listed}. "
        + " ".join(_cures(severe, wanted.renewal))
    )


def _cures(severe: list[Difference], renewal: str) -> list[str]:
    if renewal:
        return [f"Run `{renewal}`, and follow what it prints."]
    cures = []
    by_name = {each.what: each for each in severe}
    python, shoal, machine, named = (by_name.pop(name, None) for name in _SETTLED)
    if python is not None:
        cures.append(
            f"Start them with Python {python.wanted}, or run the client with Python {python.found}."
        )
    pinned = [f"{name}=={each.wanted}" for name, each in by_name.items()]
    if shoal is not None:
        pinned.insert(0, f"shoal=={shoal.wanted}")
    if pinned:
        cures.append(
            f"In their environment run `pip install {' '.join(pinned)}`, and restart their "
            "gateway, or end their idle jobs."
        )
    if shoal is not None and shoal.found:
        cures.append(f"Or run `pip install shoal=={shoal.found}` in the client's environment.")
    if named is not None:
        cures.append("Deploy it again: its packages have changed since.")
    if machine is not None:
        cures.append(
            "Your project has compiled modules: build and install them where the workers are."
        )
    return cures


_compared: PythonEnvironment | None = None
"""What this process has already been compared with."""


def check_environment(wanted: PythonEnvironment) -> None:
    """Raise `EnvironmentMismatch` if this worker can't run its client's code."""
    global _compared
    if wanted == _compared:
        return
    found = this_environment(wanted.packages, compiled=bool(wanted.machine))
    found = replace(found, name=os.environ.get(ENVIRONMENT_VARIABLE, ""))
    where = f"on {os.uname().nodename}"
    problem = mismatch(wanted, found, where)
    if problem is not None:
        raise problem
    slight = ", ".join(map(str, differences(wanted, found)))
    if slight:
        sys.stderr.write(f"shoal: the worker {where} has {slight}\n")
    _compared = wanted


def environment_name(lines: Iterable[str], python: str = "") -> str:
    """The name of an environment, which only those with the same packages have.

    Args:
        lines: Its packages, as lines for pip.
        python: Its version of Python, such as 3.11; empty: that of this process.
    """
    from hashlib import sha256

    here = this_environment()
    versions = [f"python {python or here.python}", f"shoal {here.shoal}"]
    return sha256("\n".join([*versions, *sorted(lines)]).encode()).hexdigest()[:16]
