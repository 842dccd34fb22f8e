"""Whether this process is a sandbox, where no run can start because there is no session.

Every way to start a run creates a `Session`, which checks here first.
"""

from __future__ import annotations

import sys
from types import FrameType

from shoal.errors import UsageError

_sandboxed = False


def become_sandbox() -> None:
    """Mark this process, and those that it forks, as a sandbox."""
    global _sandboxed
    _sandboxed = True


def in_sandbox() -> bool:
    """Whether this process is a sandbox."""
    return _sandboxed


def refuse_in_sandbox() -> None:
    """Raise `UsageError` in a sandbox: no run can start there."""
    if not _sandboxed:
        return
    importing = _module_body(sys._getframe(1))
    if importing is None:
        raise UsageError(
            "A task can't start a run: compute(), submit(), plan(), sessions, farms and executors "
            "don't work inside a task yet. Pass outputs to the task as arguments and compute() the "
            "whole workflow outside, or call the function of another task directly: "
            "other.function(…)."
        )
    code = importing.f_code
    raise UsageError(
        f"Module {importing.f_globals.get('__name__')!r} starts a run when it is imported "
        f"({code.co_filename}, line {importing.f_lineno}), and workers import it to find its "
        'functions. Put that line under `if __name__ == "__main__":`.'
    )


def _module_body(frame: FrameType | None) -> FrameType | None:
    """The frame of the innermost module that is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return frame
        frame = frame.f_back
    return None
