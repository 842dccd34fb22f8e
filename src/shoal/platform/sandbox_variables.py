"""`SandboxVariables`: a sandbox's `os.environ`, which explains missing variables.

1. A `KeyError` for a variable that the sandbox wasn't given says so, and how to pass it on.
2. What a module changes while it is imported stays, as the module does. Any other change is a
   task's, and must not affect the next run.
"""

from __future__ import annotations

import os
import sys
from typing import cast


class SandboxVariables(os._Environ[str]):
    """The environment; tells changes by imports from changes by tasks."""

    _data: dict[bytes, bytes]
    expected: dict[bytes, bytes]

    @classmethod
    def install(cls) -> SandboxVariables:
        """Turn this process's environment into one."""
        os.environ.__class__ = cls
        environment = cast(SandboxVariables, os.environ)
        environment.expected = dict(environment._data)
        return environment

    def __getitem__(self, name: str) -> str:
        try:
            return super().__getitem__(name)
        except KeyError as error:
            error.add_note(
                f"This sandbox was not given the environment variable {name!r}: tasks get only a "
                f"few safe ones. If it is set outside, pass it on with pass_variables={name!r}; a "
                "pattern such as 'MY_*' names several."
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
        """Whether anything but an import has changed or replaced it."""
        return os.environ is not self or self._data != self.expected


def _importing() -> bool:
    """Whether the caller runs as part of an import."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
    return False
