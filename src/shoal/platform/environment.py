"""`SandboxEnvironment`: a sandbox's `os.environ`, which explains what is missing.

1. A task that asks for a variable that its sandbox wasn't given is told so, and what to do.
2. What a module does to the environment while it is imported belongs to the module, and both stay.
   Any other change is a task's, and must not reach the next run.
"""

from __future__ import annotations

import os
import sys
from typing import cast


class SandboxEnvironment(os._Environ[str]):
    """The environment, which knows what it would be if only imports had changed it."""

    _data: dict[bytes, bytes]
    expected: dict[bytes, bytes]

    @classmethod
    def install(cls) -> SandboxEnvironment:
        """Make this process's environment one."""
        os.environ.__class__ = cls
        environment = cast(SandboxEnvironment, os.environ)
        environment.expected = dict(environment._data)
        return environment

    def __getitem__(self, name: str) -> str:
        try:
            return super().__getitem__(name)
        except KeyError as error:
            error.add_note(
                f"This sandbox was not given the environment variable {name!r}: tasks get only a "
                f"few harmless ones. If it is set outside, pass it on with "
                f"pass_variables={name!r}; a pattern such as 'MY_*' names several."
            )
            raise

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        if _importing():
            key = os.fsencode(name)
            self.expected[key] = self._data[key]

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        if _importing():
            self.expected.pop(os.fsencode(name), None)

    @property
    def changed(self) -> bool:
        """Whether anything but an import has changed it, or put another in its place."""
        return os.environ is not self or self._data != self.expected


def _importing() -> bool:
    """Whether whoever calls does so while a module is imported."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
    return False
