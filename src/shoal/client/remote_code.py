"""`RemoteCode`: gives workers that don't see this machine's files the user's modules.

1. The modules travel through the store, as an archive that its content names. The same content
   travels once, and workers that have it fetch nothing.
2. Files are looked at when a run begins, so a run uses them as they are then. Workers of a changed
   archive share no sandbox with those of an earlier one: a process can't forget its modules.
"""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

from msgspec.structs import replace

from shoal.client.project import Project, Projects, read_file
from shoal.platform.environment import ANY, Expected, client_environment, this_machine, version_of
from shoal.platform.invocation import PythonEnvironment, UserCode
from shoal.storage.code import CodeServer, archive_name
from shoal.storage.codec import Buffer
from shoal.worker.package import Packed
from shoal.workflow import Workflow

_ALWAYS = "cloudpickle"
"""The package that all values are pickled with."""
_DATE = (1980, 1, 1, 0, 0, 0)
"""The same for every file, so that equal files make equal archives."""
_QUICKLY = 1
"""A compression level: sources shrink to a third with any."""
_REMEMBERED = 16
"""How many archives are known without making them again."""
_OF_SESSION = 12
"""How many characters of an archive's name tell its sandboxes from others."""


class RemoteCode:
    """Ships the modules of a session's workflows; safe to use from several threads."""

    def __init__(
        self,
        store: str,
        latency: float,
        excluded: Sequence[str],
        warn: Callable[[str], None],
        expected: Expected = ANY,
    ) -> None:
        """Ship nothing yet.

        Args:
            store: The URL of the store.
            latency: Seconds added to each round trip.
            excluded: Patterns of files that stay here.
            warn: Gives each warning once.
            expected: The environment that the workers were deployed with.
        """
        self._expected = expected
        self._server = CodeServer(store, latency)
        self._projects = Projects(excluded)
        self._warn = warn
        self._lock = threading.Lock()
        """Guards what follows."""
        self._names: dict[tuple[object, ...], str] = {}
        """The names of archives, by what their files looked like."""
        self._versions: dict[str, tuple[str, str]] = {}
        """The package and version of installed modules."""

    def of_run(
        self, code: UserCode, packed: Packed, workflow: Workflow
    ) -> tuple[UserCode, PythonEnvironment]:
        """Ship what a run's workers need; where they find it, and what they must match."""
        named = [each[0] for each in packed.functions.values() if isinstance(each, tuple)]
        tasks = {id(call.task): call.task.function for call in workflow.calls.values()}
        by_value = [tasks[i] for i, each in packed.functions.items() if isinstance(each, bytes)]
        with self._lock:
            project = self._projects.of(list(packed.pickles()), named, _plain(by_value))
            return self._shipped(code, project)

    def of_farm(
        self, code: UserCode, pickles: Sequence[Buffer], functions: Sequence[Callable[..., Any]]
    ) -> tuple[UserCode, PythonEnvironment]:
        """Ship what a farm's workers need: all of the project, for the tasks are yet to come."""
        with self._lock:
            project = self._projects.of(pickles, (), _plain(functions), everything=True)
            return self._shipped(code, project)

    def _shipped(self, code: UserCode, project: Project) -> tuple[UserCode, PythonEnvironment]:
        for path in project.large:
            self._warn(
                f"{path} is too large to travel with your code, so tasks on other machines don't "
                "find it. Pass its content as an argument, or name it in exclude_files."
            )
        name = self._kept(project) if project.names else ""
        session = f"{code.session}-{name[:_OF_SESSION]}" if name else code.session
        shipped = replace(code, session=session, path=(), folder="", archive=name)
        versions = [self._version(top) for top in (_ALWAYS, *project.installed)]
        packages = {package: version for package, version in versions if version}
        machine = this_machine() if project.compiled else ""
        environment = client_environment(self._expected)
        return shipped, replace(environment, packages=packages, machine=machine)

    def _kept(self, project: Project) -> str:
        """The name of a project's archive, which the store has now."""
        contents = tuple(
            (named, path, project.stats[path].st_mtime_ns, project.stats[path].st_size)
            for named, path in project.names.items()
        )
        name = self._names.get(contents)
        if name is None or not self._server.renew(name):
            archive = packed_files(project.names)
            name = archive_name(archive)
            if not self._server.renew(name):
                self._server.keep(name, archive)
            if len(self._names) >= _REMEMBERED:
                self._names.clear()
            self._names[contents] = name
        return name

    def _version(self, top: str) -> tuple[str, str]:
        """The package that an installed module belongs to, and its version."""
        known = self._versions.get(top)
        if known is None:
            package = top if version_of(top) else _package_of(top)
            known = self._versions[top] = (package, version_of(package) if package else "")
        return known

    def close(self) -> None:
        """Close the connection to the store."""
        self._server.disconnect()


def _plain(functions: Iterable[Callable[..., Any]]) -> list[FunctionType]:
    """Those of these functions that have code to look at."""
    return [each for each in functions if isinstance(each, FunctionType)]


def packed_files(names: dict[str, str]) -> bytes:
    """An archive of files; equal for equal contents and names.

    Args:
        names: The path of each file, by its name in the archive.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=_QUICKLY) as archive:
        for named, path in sorted(names.items()):
            content = read_file(path)
            archive.writestr(zipfile.ZipInfo(named, _DATE), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _package_of(top: str) -> str:
    """The only installed package that has a top-level module; empty: none, or several."""
    from importlib import metadata

    found = set(metadata.packages_distributions().get(top, ()))
    return found.pop() if len(found) == 1 else ""
