"""Identify a function by where it is defined, which gives its task a key in the history.

1. A module in a package is identified by its name, wherever it is installed. A script, or a module
   outside any package, is identified by its file. So two scripts with a function of the same name
   never share history, and a script keeps its history however it is loaded.
2. A notebook is identified by its file if the kernel knows it. Any other interactive session is
   identified by its working folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

_INTERACTIVE = "<interactive>"
_DEEPEST = 100
"""How many partials and decorators around a function are unwrapped."""


def origin_of(function: Callable[..., Any]) -> str:
    """Return a function's module or file, and its qualified name."""
    inner: Any = function
    for _ in range(_DEEPEST):
        within = inner.func if isinstance(inner, partial) else getattr(inner, "__wrapped__", None)
        if within is None:
            break
        inner = within
    name = getattr(inner, "__qualname__", None) or getattr(inner, "__name__", None)
    if not isinstance(name, str):  # a callable object
        inner, name = type(inner), type(inner).__qualname__
    return f"{_module_id(_namespace(inner))}:{name}"


def program() -> str:
    """Identify the program that this process runs: a module, script, notebook or folder."""
    return _module_id(vars(sys.modules["__main__"]))


def _namespace(defined: Any) -> Mapping[str, Any]:
    """Return the namespace of the module that defines a function.

    It prefers `__globals__`, because `sys.modules` may hold a different module of that name by now.
    """
    found = getattr(defined, "__globals__", None)
    if isinstance(found, dict):
        return found
    module = getattr(defined, "__module__", None) or type(defined).__module__
    return vars(sys.modules[module]) if module in sys.modules else {"__name__": str(module)}


def _module_id(namespace: Mapping[str, Any]) -> str:
    """Return the name or file that identifies a module."""
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
    except OSError:  # the working folder was deleted
        return _INTERACTIVE
