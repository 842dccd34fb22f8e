"""Where functions are defined: what history knows tasks by, whatever they are called.

1. A module of a package goes by its name, wherever it is installed; a script, and a module that is
   in no package, by its file. So two scripts that have a function of the same name never learn from
   each other, and one learns from itself however it is loaded.
2. A notebook goes by its file, as far as the kernel knows it. Any other interactive session goes by
   its working folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

_INTERACTIVE = "<interactive>"
_DEEPEST = 100
"""Partials and decorators around a function."""


def origin_of(function: Callable[..., Any]) -> str:
    """A function's module or file, and its qualified name."""
    inner: Any = function
    for _ in range(_DEEPEST):
        within = inner.func if isinstance(inner, partial) else getattr(inner, "__wrapped__", None)
        if within is None:
            break
        inner = within
    name = getattr(inner, "__qualname__", None) or getattr(inner, "__name__", None)
    if not isinstance(name, str):  # an object that can be called
        inner, name = type(inner), type(inner).__qualname__
    return f"{_place(_namespace(inner))}:{name}"


def program() -> str:
    """The program that this process runs: a module, a script, a notebook or a working folder."""
    return _place(vars(sys.modules["__main__"]))


def _namespace(defined: Any) -> Mapping[str, Any]:
    """Of the module in which something is defined; the latest of that name may be another one."""
    found = getattr(defined, "__globals__", None)
    if isinstance(found, dict):
        return found
    module = getattr(defined, "__module__", None) or type(defined).__module__
    return vars(sys.modules[module]) if module in sys.modules else {"__name__": str(module)}


def _place(namespace: Mapping[str, Any]) -> str:
    """What a module goes by."""
    spec, file = namespace.get("__spec__"), namespace.get("__file__")
    name = str(namespace.get("__name__", "__main__") if spec is None else spec.name)
    if "." in name:
        return name
    if file is None and name == "__main__":
        file = namespace.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
        return _resolved(str(file)) if file else _folder()
    return _resolved(str(file)) if file else name


@lru_cache
def _resolved(file: str) -> str:
    return os.path.realpath(file)


def _folder() -> str:
    try:
        return os.path.join(os.getcwd(), _INTERACTIVE)
    except OSError:  # it has been deleted
        return _INTERACTIVE
