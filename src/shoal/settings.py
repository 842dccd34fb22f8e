"""`Settings`: what can be set, and where it comes from.

1. An argument of a call beats a `SHOAL_*` variable, a variable beats `shoal.toml`, and the file
   beats the default. `with options(...)` counts as arguments of the calls inside; an inner block
   beats an outer one, and the call's own arguments beat both.
2. An unknown setting, or a value of the wrong type, is an error that names the nearest valid one.
3. A token goes to the platform that is set in the same place, never to one that only a file names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

from shoal.errors import SettingsError, suggestion
from shoal.execution.pool import IDLE_SECONDS, SANDBOXES
from shoal.private import data_folder
from shoal.settings_file import FILE, read_settings
from shoal.storage.base import LEASE, RESTARTS
from shoal.storage.resp import RECONNECT_SECONDS
from shoal.system import PORTABLE
from shoal.types import HISTORY_RUNS, MEMORY_MB, MIN_MEMORY_MB

SECRET = ("store", "token", "history_url")
"""Settings that no error and no command shows."""
_LEAST = {
    "workers": 1,
    "sandboxes": 1,
    "memory_mb": MIN_MEMORY_MB,
    "history_runs": 1,
    "store_memory_mb": 64,
}
_MOST = {"workers": 1024, "sandboxes": 1024}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set."""

    store: str | None = None
    """The store's URL, `redis://HOST:PORT/DB`, several of them separated by commas, or
    `redis+cluster://HOST:PORT`; default: an embedded server."""
    durable: bool = False
    """Whether the embedded server's data survive a crash of the server or the machine."""
    store_memory_mb: int | None = None
    """The memory that the embedded server may use; default: half of the machine's."""
    reconnect_seconds: float = RECONNECT_SECONDS
    """How long to wait for a store that has stopped answering."""
    platform: str | None = None
    """A gateway's URL, `http://HOST:PORT`; default: a gateway within this process."""
    token: str | None = None
    """The gateway's token; default: the one in the file that `shoal gateway` writes."""
    ca_file: str | None = None
    """The authorities that may sign the certificate of an `https://` gateway, a file in PEM format;
    default: those that the system trusts."""
    workers: int | None = None
    """How many workers of a run may work at once; default: as many as the platform offers, which
    for a gateway is one for each core of its machine."""
    memory_mb: int = MEMORY_MB
    """A worker's memory, unless a task asks for another amount."""
    cpus: float | None = None
    """A worker's CPUs; default: in proportion to its memory."""
    sandboxes: int | None = None
    """How many sandboxes a gateway may have at once; default: 32, and the embedded gateway makes
    room for as many workers as a call asks for."""
    idle_seconds: float = IDLE_SECONDS
    """How long the embedded gateway keeps an idle sandbox."""
    lease: float = LEASE
    """Seconds without a heartbeat after which a worker counts as lost and is restarted."""
    restarts: int = RESTARTS
    """How often a worker is restarted that ended in the same task, or vanished."""
    function_seconds: float | None = None
    """How long the platform lets a function run, such as 900. A worker hands over in time and is
    restarted. Default: no limit."""
    straggling: float | None = None
    """A task that takes this many times as long as 95 % of its predictions is started a second time
    on another worker, and the first result counts. Default: never."""
    keep_seconds: float = 7 * 24 * 3600.0
    """How long the completed outputs of a failed or cancelled run are kept, so that it can be
    resumed; 0: not at all."""
    keep_mb: int = 2048
    """How much of that the data folder holds, where the embedded server and shared memory end with
    their process; the oldest runs are deleted first."""
    isolation: bool = True
    """Whether sandboxes are hidden from each other, where the system permits that."""
    pass_variables: str = ""
    """Environment variables that tasks get besides the safe defaults: names, or patterns such as
    `MY_*`, comma-separated."""
    exclude_files: str = ""
    """Files and folders of the project that don't travel to workers on other machines: patterns
    such as `*.csv` or `project/data`, comma-separated."""
    check_inputs: bool = False
    """Whether a task that changes its inputs in place fails; the check takes time."""
    latency: float = 0.0
    """Seconds added to each round trip to store and gateway, for experiments."""
    progress: bool | None = None
    """Whether to show a progress bar; default: on a terminal."""
    history: bool = True
    """Whether runs are recorded, and planned from the record."""
    history_url: str | None = None
    """Where runs are recorded: the URL of a Valkey or Redis server, or a folder; default: the
    store's server, or `folder`."""
    history_runs: int = HISTORY_RUNS
    """How many runs of each workflow are recorded."""
    planner: str | None = None
    """The planner's name: `auto`, `uniform`, `nonuniform`, `wukong`, `spread`, or one that an
    installed package registers; default: `auto`."""
    planning_seconds: float | None = None
    """How long planning may take; default: a small part of the predicted makespan."""
    prices: str | None = None
    """Whose prices a preview shows: `aws-lambda`, `aws-lambda-arm` or `none`; default: the
    platform's own. A gateway has none, and shows those of `aws-lambda` as an example."""
    cache_mb: int = 1024
    """The size of the cache for outputs of tasks with `cache=…`; 0: no cache."""
    folder: str | None = None
    """The folder of history, logs and the cache; default: the user's data folder."""

    @property
    def capacity(self) -> int:
        """How many sandboxes a gateway may have at once; an embedded one may grow."""
        return self.sandboxes or SANDBOXES

    def data_folder(self) -> Path:
        """The folder of history, logs and the cache, closed to other users."""
        if self.folder is not None:
            return data_folder(Path(self.folder).expanduser(), named=True)
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return data_folder(Path(base).expanduser() / "shoal", named=False)

    def changed(self, options: Mapping[str, Any]) -> Settings:
        """The same settings, except for those that a call sets."""
        return _updated(self, options, "the call") if options else self


LASTING = ("store", "durable", "store_memory_mb", "reconnect_seconds", "platform", "token",
           "ca_file", "sandboxes", "idle_seconds", "isolation", "pass_variables",
           "exclude_files", "latency", "history_url", "folder")  # fmt: skip
"""What a session is opened with; other settings may differ from run to run."""
connections = attrgetter(*LASTING)
"""The settings that calls must have in common to share a session."""
_TYPES: dict[str, Any] = get_type_hints(Settings)
NAMES = tuple(field.name for field in fields(Settings))

RUNNING = ("timeout", "resume")
"""Options of `compute` that concern running only; `plan` ignores them."""
PER_CALL = frozenset(("name", "planner", "deadline", "budget", "sla", *RUNNING))
"""What a call takes besides settings."""
_CALLS = ("the call", "shoal.options")
"""Where both can be given."""
_NO_OPTIONS: Mapping[str, Any] = {}
_options: ContextVar[Mapping[str, Any]] = ContextVar("shoal.options", default=_NO_OPTIONS)


@contextmanager
def options(**given: Any) -> Iterator[None]:
    """Set options for every `compute`, `submit` and `plan` inside the block, and for Dask's.

    Threads started inside the block don't inherit them.

    Args:
        **given: Any option of `compute`, such as `planner`, `store`, `platform`, `memory_mb` or
            `workers`.
    """
    for name, value in given.items():
        if name not in PER_CALL and (isinstance(value, str) or name not in ("store", "platform")):
            _check(name, value, "shoal.options")
    token = _options.set({**_options.get(), **given})
    try:
        yield
    finally:
        _options.reset(token)


def in_force(given: Mapping[str, Any]) -> dict[str, Any]:
    """A call's own options, and those of the `options` blocks around it."""
    return {**_options.get(), **given}


_DEFAULTS = Settings()


def of_call(
    given: Mapping[str, Any],
) -> tuple[Settings, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The settings in force for a call with these options and the `options` blocks around it.

    Returns also which settings the call gives, its store and platform if they are objects, and its
    other options.
    """
    others = {**_options.get(), **given}
    settled: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    for name in [name for name in others if name in NAMES and name != "planner"]:
        value = others.pop(name)
        is_object = name in ("store", "platform") and not isinstance(value, str)
        (objects if is_object else settled)[name] = value
    return resolve(settled), settled, objects, others


def resolve(arguments: Mapping[str, Any]) -> Settings:
    """The settings in force, given some as arguments."""
    settings = _DEFAULTS
    for where, found in _sources(arguments).items():
        if found:
            settings = _updated(settings, found, where)
    return settings


def origins(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Where the value of each setting comes from."""
    found = dict.fromkeys(NAMES, "default")
    for where, values in _sources(arguments).items():
        for name in values:
            found[name] = f"SHOAL_{name.upper()}" if where == _ENVIRONMENT else where
    return found


_ENVIRONMENT = "the environment"
_NO_SETTINGS = frozenset((PORTABLE, "SHOAL_ENVIRONMENT", "SHOAL_FUNCTION"))
"""Variables that aren't settings; the others tell what was deployed, as in an image."""


def _sources(arguments: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What is set where; each source beats those before it."""
    file = read_settings(Path.cwd() / FILE, NAMES) if os.path.exists(FILE) else {}
    variables = _from_environment()
    if file or variables:
        _keep_tokens_apart(file, variables, arguments)
    return {FILE: file, _ENVIRONMENT: variables, "the call": arguments}


def _keep_tokens_apart(
    file: dict[str, Any], variables: dict[str, Any], arguments: Mapping[str, Any]
) -> None:
    """Drop tokens that would go to a gateway that another source names.

    A token belongs to the platform that is set in the same place. Where that names none, it belongs
    to the platform in force, unless only the file names it: the file may have come with somebody
    else's code, so its platform gets no token from outside the file.
    """
    named = [each["platform"] for each in (arguments, variables, file) if "platform" in each]
    if named and named[0] is not None:
        for source in (variables, file):
            if source.get("platform", named[0]) != named[0]:
                source.pop("token", None)
        if not {"platform"} & (arguments.keys() | variables.keys()):
            variables.pop("token", None)


def _updated(settings: Settings, found: Mapping[str, Any], where: str) -> Settings:
    for name, value in found.items():
        _check(name, value, where)
    return replace(settings, **found)


def _check(name: str, value: Any, where: str) -> None:
    if name not in _TYPES:
        raise SettingsError(_unknown(name, where))
    wanted = _TYPES[name]
    fits = isinstance(value, wanted) or (isinstance(value, int) and isinstance(1.0, wanted))
    if not fits or (isinstance(value, bool) and not isinstance(True, _without_int(wanted))):
        shown = f"a value of type {type(value).__name__}" if name in SECRET else repr(value)
        raise SettingsError(f"{where} sets {name} to {shown}; it must be {_named(wanted)}.")
    if isinstance(value, int | float) and not isinstance(value, bool):
        least = _LEAST.get(name, 0)
        if not value >= least:
            raise SettingsError(f"{where} sets {name} to {value!r}; it must be at least {least}.")
        if value > _MOST.get(name, value):
            raise SettingsError(
                f"{where} sets {name} to {value!r}; it must be at most {_MOST[name]}."
            )


def _unknown(name: str, where: str) -> str:
    if name in PER_CALL:
        return f"{where} has {name!r}, which isn't a setting: pass it to compute()."
    names = [*NAMES, *sorted(PER_CALL - {*NAMES})] if where in _CALLS else [*NAMES]
    what = "option" if where in _CALLS else "setting"
    return f"{where} has an unknown {what} {name!r}; {suggestion(name, names)}"


def _without_int(wanted: Any) -> tuple[type, ...]:
    kinds = getattr(wanted, "__args__", (wanted,))
    return tuple(kind for kind in kinds if kind is not int)


def _named(wanted: Any) -> str:
    names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    kinds = getattr(wanted, "__args__", (wanted,))
    return " or ".join(names.get(kind, "left out") for kind in kinds)


def _from_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable in os.environ:
        if variable.startswith("SHOAL_") and variable not in _NO_SETTINGS:
            name = variable[len("SHOAL_") :].lower()
            found[name] = _parsed(name, os.environ[variable])
    return found


def _parsed(name: str, text: str) -> Any:
    """A variable's text as a value of its setting's type; unchanged if it doesn't fit."""
    kinds = getattr(_TYPES.get(name, str), "__args__", (_TYPES.get(name, str),))
    if bool in kinds:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
            text.lower(), text
        )
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                return text
    return text
