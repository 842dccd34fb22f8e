"""The user's project: which modules workers need that don't see this machine's files.

1. A module belongs to the project if it has a file and is neither part of Python, nor installed,
   nor Shoal. An editable installation belongs to the project.
2. What the pickles name travels, and what those modules import, as whole top-level modules and
   packages with the data files in them. A name too many does no harm, so a look at the text of
   pickles and of import statements will do. Modules that are pickled by value aren't needed.
3. The versions of installed packages matter if a pickle refers to them, or a module of the project
   imports them whenever it is imported itself: an indented `import` may be optional. A name too
   many would be an error here, so only references of pickles and loaded modules count.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec, resolve_name
from types import FunctionType, ModuleType
from typing import Any

from shoal.client.references import referenced_modules
from shoal.errors import CodeTooLarge, UsageError
from shoal.storage.codec import Buffer
from shoal.worker.digests import codes, imported_names
from shoal.workflow import sent_by_value

MAX_NBYTES = 64 * 2**20
"""The most bytes of all files together."""
MAX_FILE_NBYTES = 8 * 2**20
"""The most bytes of a data file; larger ones stay here."""
_INSTALLED = ("site-packages", "dist-packages")
_NEVER = frozenset(("__main__", "__mp_main__", "shoal", "sitecustomize", "usercustomize"))
_UNWANTED_FOLDERS = frozenset(("__pycache__", "node_modules"))
_UNWANTED_SUFFIXES = (".pyc", ".pyo")
_RECORDS = ("METADATA", "entry_points.txt")
_COMPILED = tuple(EXTENSION_SUFFIXES)
_CODE = (".py", *_COMPILED)
_IMPORT = re.compile(
    rb"^([ \t]*)(?:import[ \t]+([\w., \t]+)"
    rb"|from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n;#]+))",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Import:
    """An import statement."""

    module: str
    """Begins with a dot for each level if it is relative."""
    names: tuple[str, ...]
    """What is taken from the module; some may be modules inside it."""
    always: bool
    """Whether it is carried out whenever its module is imported."""


@dataclass(frozen=True, slots=True)
class Project:
    """What a workflow needs of the user's modules."""

    stats: dict[str, os.stat_result]
    """What the system says of each file that travels, by its path."""
    names: dict[str, str]
    """The path of each file, by its name in the archive."""
    large: tuple[str, ...]
    """Data files that are too large to travel."""
    installed: frozenset[str]
    """The installed top-level modules whose versions matter."""

    @property
    def compiled(self) -> bool:
        """Whether compiled modules are among the files."""
        return any(name.endswith(_COMPILED) for name in self.names)


def imports_in(source: bytes) -> list[Import]:
    """The import statements in a module's text; text that only looks like one counts, too."""
    found: list[Import] = []
    for indent, plain, dots, module, names in _IMPORT.findall(source):
        always = not indent
        for item in plain.split(b","):
            words = item.split()
            if words and words[1:2] in ([], [b"as"]):  # else it is prose
                found.append(Import(_text(words[0]), (), always))
        if module or dots:
            taken = [item.split() for item in names.strip(b"()").split(b",")]
            taken_names = tuple(_text(words[0]) for words in taken if words)
            found.append(Import(_text(dots + module), taken_names, always))
    return found


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


@cache
def _holds_packages(folder: str) -> bool:
    """Whether packages are installed into a folder: it has their records."""
    if any(part in _INSTALLED for part in folder.split(os.sep)):
        return True
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def _is_installed(place: str) -> bool:
    """Whether a top-level module, or the folder of one, is installed."""
    return _holds_packages(os.path.dirname(os.path.abspath(place)))


def _places(module: Any) -> list[str]:
    """The files and folders of a top-level module of the project; none if it isn't one.

    Args:
        module: The module, or the spec of one that isn't loaded.
    """
    folders = getattr(module, "__path__", None) or getattr(module, "submodule_search_locations", ())
    if folders:
        return [f for f in folders if os.path.isdir(f) and not _is_installed(f)]
    file = getattr(module, "__file__", None) or getattr(module, "origin", None)
    if not isinstance(file, str) or not file.endswith(_CODE) or _is_installed(file):
        return []
    return [file] if os.path.isfile(file) else []


@cache
def _records(top: str) -> tuple[tuple[str, str], ...]:
    """The files that `importlib.metadata` reads of a package with this name, if it is installed.

    Modules often ask for their own version when they are imported.
    """
    from importlib import metadata

    try:
        found = metadata.distribution(top)
    except (metadata.PackageNotFoundError, ValueError):
        return ()
    paths = [path for path in found.files or () if path.name in _RECORDS]
    return tuple((f"{path.parent.name}/{path.name}", str(path.locate())) for path in paths)


def _own(top: str) -> bool:
    """Whether a top-level module may be the user's, by its name."""
    return top not in sys.stdlib_module_names and top not in _NEVER


def loaded_project() -> dict[str, list[str]]:
    """The files and folders of the project's top-level modules that are loaded, by name."""
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if "." not in name and _own(name) and isinstance(module, ModuleType):
            places = _places(module)
            if places:
                found[name] = places
    return found


def _unloaded_places(top: str) -> list[str]:
    """The files and folders of a top-level module of the project that isn't loaded."""
    if not _own(top) or top in sys.modules:
        return []
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return []
    if spec is None or spec.origin is None:  # any folder could be a namespace package
        return []
    return _places(spec)


class Projects:
    """Finds what workflows need; remembers what it has read of files that haven't changed."""

    def __init__(self, excluded: Sequence[str] = ()) -> None:
        """Leave out the files that match these patterns."""
        self._excluded = tuple(excluded)
        self._imports: dict[str, tuple[int, int, list[Import]]] = {}

    def of(
        self,
        pickles: Sequence[Buffer],
        modules: Iterable[str] = (),
        functions: Iterable[FunctionType] = (),
        *,
        everything: bool = False,
    ) -> Project:
        """What workers need.

        Args:
            pickles: What they are sent.
            modules: Modules that they import besides those that the pickles refer to.
            functions: Functions that are pickled by value, and may import modules when they run.
            everything: Whether they may be sent more, so that they need all loaded modules.
        """
        by_name = set(modules)
        lazily = {name for function in functions for name in _imported_by(function)}
        roots = {_top(name) for name in by_name | lazily}
        if any(_contains(data, "__main__") for data in pickles):
            roots |= self._imported_by_script()
        loaded = loaded_project()
        for top in loaded.keys() - roots:
            named = everything or any(_contains(data, top) for data in pickles)
            if named and not sent_by_value(top):
                roots.add(top)
        files = _Files(self._excluded)
        self._collect(roots, loaded, files)
        files.check()
        needed = {n for n in referenced_modules(pickles) | by_name if not sent_by_value(n)}
        installed = self._installed(needed, loaded)
        return Project(files.stats, files.names, tuple(files.large), installed)

    def _imported_by_script(self) -> set[str]:
        """The top-level modules that the script of this process imports, wherever it does."""
        file = getattr(sys.modules["__main__"], "__file__", None) or ""
        if not os.path.isfile(file):
            return set()
        return {_top(each.module) for each in self._imports_of(file, os.stat(file))}

    def _collect(self, roots: set[str], loaded: dict[str, list[str]], files: _Files) -> None:
        """Collect the files of top-level modules, and of those that they import."""
        waiting, seen = sorted(roots), set(roots)
        while waiting:
            top = waiting.pop()
            places = loaded.get(top) or _unloaded_places(top)
            if places:
                files.add_records(top)
            for place in places:
                for path in files.add_all(top, place):
                    named = {
                        _top(each.module) for each in self._imports_of(path, files.stats[path])
                    }
                    waiting += sorted(named - seen)
                    seen |= named

    def _imports_of(self, path: str, stat: os.stat_result) -> list[Import]:
        known = self._imports.get(path)
        if known is not None and known[:2] == (stat.st_mtime_ns, stat.st_size):
            return known[2]
        found = imports_in(read_file(path))
        self._imports[path] = (stat.st_mtime_ns, stat.st_size, found)
        return found

    def _installed(self, roots: set[str], loaded: Container[str]) -> frozenset[str]:
        """The installed top-level modules that modules need as soon as they are imported."""
        waiting, seen, found = list(roots), set(roots), set()
        while waiting:
            name = waiting.pop()
            module, top = sys.modules.get(name), _top(name)
            if module is None or not _own(top):
                continue
            if top not in loaded:
                found.add(top)
                continue
            more = {name.rpartition(".")[0], *self._always_imported(module)} - seen
            waiting += more
            seen |= more
        return frozenset(found)

    def _always_imported(self, module: ModuleType) -> Iterator[str]:
        file = getattr(module, "__file__", None) or ""
        if not file.endswith(".py") or not os.path.isfile(file):
            return
        for each in self._imports_of(file, os.stat(file)):
            with suppress(ImportError):  # only looks like a statement
                name = resolve_name(each.module, module.__package__ or "")
                yield from (name, *(f"{name}.{part}" for part in each.names)) if each.always else ()


def _top(module: str) -> str:
    """The top-level module of a module; empty for a relative import."""
    return module.partition(".")[0]


def _imported_by(function: FunctionType) -> Iterator[str]:
    """The modules that a function imports when it runs."""
    package = function.__globals__.get("__package__") or ""
    for code in codes(function.__code__):
        yield from imported_names(code, package)


def _contains(data: Buffer, name: str) -> bool:
    return re.search(re.escape(name.encode()), data) is not None


def read_file(path: str) -> bytes:
    """The content of a file of the project."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(
            f"{path} can't travel with your code to workers on other machines: {error}. Make it "
            "readable, or name it in exclude_files."
        ) from error


class _Files:
    """Collects the files of modules and packages."""

    def __init__(self, excluded: Sequence[str]) -> None:
        self._excluded = excluded
        self.stats: dict[str, os.stat_result] = {}
        self.names: dict[str, str] = {}
        self.large: list[str] = []

    def add_all(self, top: str, place: str) -> Iterator[str]:
        """Collect the files of a top-level module, and yield the paths of its sources."""
        if os.path.isfile(place):
            suffix = "".join(os.path.basename(place).partition(".")[1:])
            named = [(f"{top}{suffix}", place)]
        else:
            named = [] if self._is_excluded(top) else [*self._inside(top, place)]
        for name, path in named:
            if self._add(name, path) and name.endswith(".py"):
                yield path

    def add_records(self, top: str) -> None:
        """Collect what tells the version of a package that is installed in editable form."""
        for name, path in _records(top):
            self._add(name, path)

    def _inside(self, top: str, place: str) -> Iterator[tuple[str, str]]:
        """The files in the folder of a package: their names in the archive, and their paths."""
        for folder, folders, files in os.walk(place):
            inside = os.path.relpath(folder, place)
            prefix = top if inside == "." else f"{top}/{inside.replace(os.sep, '/')}"
            folders[:] = sorted(
                name for name in folders if self._enters(f"{prefix}/{name}", folder, name)
            )
            yield from ((f"{prefix}/{name}", os.path.join(folder, name)) for name in sorted(files))

    def _enters(self, named: str, folder: str, name: str) -> bool:
        if name.startswith(".") or name in _UNWANTED_FOLDERS or self._is_excluded(named):
            return False
        return not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))

    def _is_excluded(self, named: str) -> bool:
        last = named.rpartition("/")[2]
        return any(fnmatchcase(named, p) or fnmatchcase(last, p) for p in self._excluded)

    def _add(self, named: str, path: str) -> bool:
        """Collect a file; whether it travels."""
        last = named.rpartition("/")[2]
        unwanted = last.startswith(".") or last.endswith(_UNWANTED_SUFFIXES)
        if unwanted or named in self.names or self._is_excluded(named) or not os.path.isfile(path):
            return False
        found = os.stat(path)
        if found.st_size > MAX_FILE_NBYTES and not last.endswith(_CODE):
            self.large.append(path)
            return False
        self.stats[path], self.names[named] = found, path
        return True

    def check(self) -> None:
        """Raise `CodeTooLarge` if the files are too large together."""
        sizes = {named: self.stats[path].st_size for named, path in self.names.items()}
        total = sum(sizes.values())
        if total > MAX_NBYTES:
            raise CodeTooLarge(total, MAX_NBYTES, _largest(sizes))


def _largest(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """The folders with the most bytes, by what is in them directly, and modules without one."""
    found: dict[str, int] = {}
    for named, nbytes in sizes.items():
        where = named.rpartition("/")[0] or named
        found[where] = found.get(where, 0) + nbytes
    return sorted(found.items(), key=lambda item: -item[1])[:3]
