"""Digests of values and functions by their content, the same in every process.

1. A digest of the pickle won't do: it depends on the order of sets, and on which equal strings are
   the same object. So values are traversed as pickling would traverse them, and digested part by
   part.
2. A function is digested by its bytecode, constants, defaults, closure, the globals that it names,
   and what it takes from modules, including those that it imports. Functions among these are
   digested in turn. Definitions of installed packages and of Python count by name only.
3. A class is digested by its name, bases, plain attributes, and its methods as functions.
4. Values that can't be pickled have no digest: the error of pickling is raised.
"""

from __future__ import annotations

import copyreg
import marshal
import pickle
import sys
from collections.abc import Iterator
from enum import Enum
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec, resolve_name
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from shoal.workflow import Task

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))
_BUFFERS = frozenset((bytearray, memoryview, pickle.PickleBuffer))
_NAMED = (BuiltinFunctionType, type(len), type(str.join), type(dict.__dict__["fromkeys"]))
_WRAPPING = ("__func__", "fget", "fset", "fdel", "func")
"""The attributes in which methods and properties of all kinds have their functions."""
_INSTALLED = ("site-packages", "dist-packages")


def content_digest(value: Any) -> bytes:
    """The digest of a value; only equal values have the same."""
    return _Digester().of(value)


def function_digest(function: Any) -> bytes:
    """The digest of what a task's function does, wherever it is defined."""
    digester = _Digester()
    if isinstance(function, FunctionType):
        return digester.function(function)
    return digester.of(function)


def data_digest(value: Any) -> bytes:
    """The digest of a value's data; functions and classes in it count by name only."""
    return _DataDigester().of(value)


class _Digester:
    """Digests one value; parts that occur twice are digested once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}
        """Digests by id; holding the objects keeps their ids from being reused."""
        self._open: dict[int, int] = {}
        """The ids of objects that are being digested, and their depths."""

    def of(self, value: Any) -> bytes:
        kind = type(value)
        if kind in _PLAIN:
            return _hashed(kind.__name__, marshal.dumps(value, 0))
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        depth = self._open.get(id(value))
        if depth is not None:
            return _hashed("inside itself", str(len(self._open) - depth).encode())
        self._open[id(value)] = len(self._open)
        try:
            digest = self._container(value) if kind in _CONTAINERS else self._object(value)
        finally:
            del self._open[id(value)]
        self._known[id(value)] = (value, digest)
        return digest

    def _container(self, value: Any) -> bytes:
        kind = type(value).__name__
        if isinstance(value, dict):
            return _hashed(kind, self._items(list(value)), self._items(list(value.values())))
        if isinstance(value, set | frozenset):
            return _hashed(kind, *sorted(map(self.of, value)))
        return _hashed(kind, self._items(list(value)))

    def _items(self, items: list[Any]) -> bytes:
        # Version 0 of marshal's format refers to no object a second time, and tells none apart by
        # whether it is interned.
        if _PLAIN.issuperset(map(type, items)):
            return _hashed("plain", marshal.dumps(items, 0))
        return _hashed("items", *map(self.of, items))

    def _object(self, value: Any) -> bytes:
        if type(value) in _BUFFERS:
            return _hashed("buffer", memoryview(value).tobytes())
        if isinstance(value, FunctionType):
            return _name_of(value) if _is_installed(value.__module__) else self.function(value)
        if isinstance(value, Task):
            return self.of(value.function)
        if isinstance(value, type):
            return _name_of(value) if _is_installed(value.__module__) else self._class(value)
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, ModuleType):
            return _hashed("module", value.__name__.encode())
        numpy = sys.modules.get("numpy")
        if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject:
            about = repr((value.dtype, value.shape)).encode()
            return _hashed("array", about, memoryview(numpy.ascontiguousarray(value)).cast("B"))
        return self._reduced(value)

    def _reduced(self, value: Any) -> bytes:
        """Digest an object by the parts that pickling would take."""
        reduce = copyreg.dispatch_table.get(type(value))
        parts = reduce(value) if reduce else value.__reduce_ex__(5)
        if isinstance(parts, str):
            return _hashed("name", repr((type(value).__qualname__, parts)).encode())
        if isinstance(value, _NAMED):
            return _name_of(value)
        made, args, state, items, pairs = (*parts, None, None, None)[:5]
        held = [list(some) if some is not None else None for some in (items, pairs)]
        return _hashed("object", *map(self.of, (made, args, state, *held)))

    def function(self, function: FunctionType) -> bytes:
        """Digest the content of a function, whichever module defines it."""
        self._open.setdefault(id(function), len(self._open))
        cells = [_content(cell) for cell in function.__closure__ or ()]
        parts = [
            self._code(function.__code__),
            *map(self.of, (function.__defaults__, function.__kwdefaults__, cells)),
        ]
        inner = list(codes(function.__code__))
        names = frozenset(name for code in inner for name in code.co_names)
        package = function.__globals__.get("__package__") or ""
        imported = sorted({name for code in inner for name in imported_names(code, package)})
        # Import all first: a submodule becomes an attribute of its package once it is imported.
        used: dict[str, Any] = {name: _own_module(name) for name in imported}
        for name in sorted({name for code in inner for name in _global_names(code)}):
            if name in function.__globals__:
                used[f"global {name}"] = function.__globals__[name]
        for name, value in used.items():
            parts += [name.encode(), self._global(value, names)]
        return _hashed("function", *parts)

    def _global(self, value: Any, names: frozenset[str]) -> bytes:
        """Digest a global; for a user's module, what the function may take from it."""
        if not isinstance(value, ModuleType) or _is_installed(value.__name__):
            return self.of(value)
        parts = [value.__name__.encode()]
        if id(value) not in self._open:  # modules may refer to each other
            self._open[id(value)] = len(self._open)
            for name in sorted(names & vars(value).keys()):
                parts += [name.encode(), self._global(vars(value)[name], names)]
            del self._open[id(value)]
        return _hashed("module", *parts)

    def _code(self, code: CodeType) -> bytes:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        consts = (code.co_code, code.co_exceptiontable, code.co_consts)
        return _hashed("code", *map(self.of, (names, counts, consts)))

    def _class(self, kind: type) -> bytes:
        parts = [_name_of(kind), *(self.of(base) for base in kind.__bases__)]
        for name, value in sorted(vars(kind).items()):
            functions = list(_functions(value))
            if functions:
                parts += [name.encode(), *map(self.of, functions)]
            elif not name.startswith("__"):
                plain = value.value if isinstance(value, Enum) else value
                parts += [name.encode(), self.of(plain) if type(plain) in _PLAIN else b""]
        return _hashed("class", *parts)


class _DataDigester(_Digester):
    """Digests functions, classes and modules by name: their content isn't part of a value."""

    def _object(self, value: Any) -> bytes:
        if isinstance(value, Task):
            value = value.function
        if isinstance(value, FunctionType | type):
            return _name_of(value)
        return super()._object(value)


def _global_names(code: CodeType) -> Iterator[str]:
    """The globals that code names."""
    import dis

    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval


def imported_names(code: CodeType, package: str) -> Iterator[str]:
    """What code imports when it runs: modules, and names that may be modules inside them."""
    import dis

    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for level, wanted, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            dotted = "." * level.argval
            name = resolve_name(dotted + step.argval, package) if dotted else step.argval
            yield name
            yield from (f"{name}.{part}" for part in wanted.argval or ())


def _own_module(name: str) -> ModuleType | None:
    """A module of the user, imported as the function will do it; None: it isn't the user's."""
    if _is_installed(name):
        return None
    try:
        return import_module(name)
    except ImportError:
        return None


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code, and the code of the functions and comprehensions inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes(const)


def _functions(attribute: Any) -> Iterator[FunctionType]:
    """The functions of a class attribute, such as a method or a property."""
    inside = (getattr(attribute, name, None) for name in _WRAPPING)
    return (found for found in (attribute, *inside) if isinstance(found, FunctionType))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is still empty
        return None


def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python or an installed package, not to the user."""
    if module is None or module.partition(".")[0] in sys.stdlib_module_names:
        return True
    if module in sys.modules:
        file = getattr(sys.modules[module], "__file__", None)
    else:
        spec = find_spec(module.partition(".")[0])
        file = spec.origin if spec is not None else None
    return any(folder in (file or "") for folder in _INSTALLED)


def _name_of(value: Any) -> bytes:
    owner = getattr(value, "__objclass__", None) or getattr(value, "__module__", "")
    return _hashed("name", f"{owner} {value.__qualname__}".encode())


def _hashed(kind: str, *parts: bytes | memoryview) -> bytes:
    digest = blake2b(kind.encode(), digest_size=24)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
