"""`Environment`: what the runs of a session have in common.

What is the same for every run is found out once. What may change between two runs, as the working
folder or the import path in a notebook, is compared, and described again only if it has changed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from shoal.client.backends import Backends, cache_location
from shoal.client.planning import Planned
from shoal.client.resume import UnfinishedRun
from shoal.client.shared_folders import SharedFolders
from shoal.import_path import import_path
from shoal.platform.gateway import LocalGateway
from shoal.platform.invocation import (
    CacheAccess,
    PythonEnvironment,
    RunContext,
    RunSettings,
    UserCode,
)
from shoal.settings import Settings
from shoal.storage.shared_memory import SharedFolder
from shoal.worker.package import Packed
from shoal.workflow import Workflow

if TYPE_CHECKING:
    from shoal.client.remote_code import RemoteCode

_PRELOADABLE = ("numpy", "scipy", "pandas", "PIL", "dask.array", "dask.bag", "dask.dataframe")
"""Packages that take long to import and can be forked after that."""


class Environment:
    """Where the runs of a session work, and what their workers need to know; thread-safe."""

    def __init__(self, backends: Backends, folders: SharedFolders) -> None:
        self._backends = backends
        self.store = backends.store
        self.platform = backends.platform
        self.folders = folders
        """Where runs put large outputs."""
        self.python: PythonEnvironment | None = backends.environment()
        """What workers must match; None: they are forked from this process's own environment."""
        self._forked = isinstance(backends.platform, LocalGateway)
        self._code: tuple[object, UserCode] | None = None
        """The user's code, and what it was found by."""

    @property
    def remote_code(self) -> RemoteCode | None:
        """Ships the user's code to workers that don't see this machine's files; None: they do."""
        return None if self._forked else self._backends.remote_code(self.folders)

    def code(self) -> UserCode:
        """Where workers find the user's code."""
        folder, modules = os.getcwd(), sys.modules
        found_by = (folder, *sys.path), *[package in modules for package in _PRELOADABLE]
        known = self._code
        if known is None or known[0] != found_by:
            code = UserCode(
                session=self._backends.session,
                path=import_path(),
                folder=folder,
                preload=tuple(package for package in _PRELOADABLE if package in modules),
            )
            known = self._code = (found_by, code)
        return known[1]

    def context(
        self,
        run: UnfinishedRun,
        planned: Planned,
        packed: Packed,
        shared: SharedFolder | None,
        *,
        detached: bool,
    ) -> RunContext:
        """What all workers of a run have in common."""
        workflow, settings = run.plan.workflow, planned.request.settings
        code, python, remote_code = self.code(), self.python, self.remote_code
        if remote_code is not None:
            code, python = remote_code.of_run(code, packed, workflow)
        return RunContext(
            run=run.id,
            key=run.key,
            store=self.store.url,
            code=code,
            environment=python,
            settings=run_settings(settings, planned.workers),
            cache=self._cache(workflow, settings),
            shared=shared.path if shared else None,
            common=packed.name,
            detached=detached,
            started=run.started,
        )

    def _cache(self, workflow: Workflow, settings: Settings) -> CacheAccess | None:
        """The cache that keeps outputs across runs; None if no task uses it."""
        for call in workflow.calls.values():
            if call.task.cache:
                return CacheAccess.of(cache_location(settings, self.store))
        return None


def run_settings(settings: Settings, workers: int) -> RunSettings:
    """The settings that workers and platform obey."""
    return RunSettings(
        lease=settings.lease,
        latency=settings.latency,
        check_inputs=settings.check_inputs,
        workers=workers,
    )
