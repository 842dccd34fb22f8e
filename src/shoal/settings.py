"""`Settings`: what can be set, from arguments, `options`, `shoal.toml` and `SHOAL_*` variables.

An argument beats the block of `options` that it is in, and an inner block an outer one; a block
beats the file, the file beats a variable, a variable beats the default. What is unknown or
ill-typed is an error that names the nearest valid setting.

A file that somebody else could have written is refused. A token goes to the platform that is set in
the same place, never to one that a file names beside it.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from shoal.errors import SettingsError, suggestion
from shoal.private import data_folder
from shoal.storage.resp import RECONNECT_SECONDS
from shoal.system import PORTABLE, cores

FILE = "shoal.toml"
SANDBOXES = 32
"""How many a gateway may have at once, unless told otherwise."""
_SECRET = ("store", "token")
"""No error repeats them."""
_LEAST = {"workers": 1, "sandboxes": 1, "memory_mb": 64, "history_runs": 1, "store_memory_mb": 64}
_MOST = {"workers": 1024, "sandboxes": 1024}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set."""

    store: str | None = None
    """The store's URL, `redis://HOST:PORT/DB`, several with commas between them, or
    `redis+cluster://HOST:PORT`; default: an embedded server."""
    durable: bool = False
    """Whether the embedded server keeps what it is told when it is killed, or the machine is."""
    store_memory_mb: int | None = None
    """What the embedded server may use; default: half of the machine's memory."""
    reconnect_seconds: float = RECONNECT_SECONDS
    """For how long a store that doesn't answer any more is waited for."""
    platform: str | None = None
    """A gateway's URL, `http://HOST:PORT`; default: a gateway within this process."""
    invoker: str | None = None
    """The URL of a fan-out invoker beside the gateway (see `shoal invoker`), whose token it has;
    default: the gateway's own."""
    token: str | None = None
    """The gateway's token; default: the one in the file that `shoal gateway` writes."""
    ca_file: str | None = None
    """Who the certificate of an `https://` gateway may come from, a file in PEM format; default:
    whom the system trusts."""
    workers: int | None = None
    """How many workers may be at work at once; default: one for each core."""
    memory_mb: int = 2048
    """A worker's memory, unless a task asks for something else."""
    cpus: float | None = None
    """A worker's CPUs; default: they follow its memory."""
    sandboxes: int | None = None
    """How many sandboxes a gateway may have at once; default: 32, and the embedded one has room
    for as many workers as are asked for."""
    idle_seconds: float = 7.0
    """After how long an idle sandbox of the embedded gateway is removed."""
    lease: float = 15.0
    """Seconds without a sign of life after which a worker counts as lost and is started anew."""
    restarts: int = 3
    """How often a worker is started anew that ended in the same task, or vanished."""
    function_seconds: float | None = None
    """How long the platform lets a function run, such as 900; a worker hands over in time, and is
    started anew. Default: for ever."""
    straggling: float | None = None
    """A task that takes so many times as long as 95 % of its predictions is started a second time
    elsewhere, and the first result counts. Default: never."""
    keep_seconds: float = 7 * 24 * 3600.0
    """For how long what is finished of a failed or cancelled run is kept, for who resumes it; 0:
    nothing is kept."""
    keep_mb: int = 2048
    """How much of that is kept in the data folder, where the embedded server and shared memory end
    with their process; the oldest runs go first."""
    isolation: bool = True
    """Whether sandboxes are kept from seeing each other, where the system permits that."""
    pass_variables: str = ""
    """Environment variables that tasks get besides the harmless ones: names, or patterns such as
    `MY_*`, comma-separated."""
    check_inputs: bool = False
    """Whether a task that changes its inputs in place fails; finding out takes time."""
    latency: float = 0.0
    """Seconds added to each round trip to store and gateway, for experiments."""
    progress: bool | None = None
    """Whether to show progress; default: on a terminal."""
    history: bool = True
    """Whether runs are recorded for later plans."""
    history_runs: int = 100
    """How many runs of each workflow are kept."""
    planner: str | None = None
    """The planner's name: `auto`, `uniform`, `nonuniform`, `wukong`, `spread`, or one that an
    installed package registers; default: `auto`."""
    planning_seconds: float | None = None
    """How long planning may take; default: a small part of the predicted makespan."""
    prices: str = "aws-lambda"
    """Whose prices a preview shows."""
    cache_mb: int = 1024
    """How much is kept of the outputs of tasks with `cache=…`; 0: they are run every time."""
    folder: str | None = None
    """Where history, logs and the cache are kept; default: the user's data folder."""

    @property
    def at_once(self) -> int:
        """How many workers of a run may be at work at once."""
        return self.workers or cores()

    def data_folder(self) -> Path:
        """Where history, logs and the cache are kept, closed to other users."""
        if self.folder is not None:
            return data_folder(Path(self.folder).expanduser(), named=True)
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return data_folder(Path(base).expanduser() / "shoal", named=False)

    @property
    def connections(self) -> tuple[Any, ...]:
        """The settings that two sessions must have in common to be one."""
        return tuple(getattr(self, name) for name in LASTING)


LASTING = ("store", "durable", "store_memory_mb", "reconnect_seconds", "platform", "token",
           "ca_file", "sandboxes", "idle_seconds", "isolation", "pass_variables", "latency",
           "folder")  # fmt: skip
"""What a session is made with; other settings may differ from run to run."""
_TYPES: dict[str, Any] = get_type_hints(Settings)
NAMES = tuple(field.name for field in fields(Settings))


RUNNING = ("timeout", "resume")
"""What `compute` takes for running alone; `plan` ignores it."""
PER_CALL = frozenset(("name", "planner", "deadline", "budget", "sla", *RUNNING))
"""What a call takes beside settings."""
_CALLS = ("the call", "shoal.options")
"""Where both are given."""
_NO_OPTIONS: Mapping[str, Any] = {}
_options: ContextVar[Mapping[str, Any]] = ContextVar("shoal.options", default=_NO_OPTIONS)


@contextmanager
def options(**given: Any) -> Iterator[None]:
    """Options for every `compute`, `submit` and `plan` inside the block, and for Dask's.

    Threads that are started inside the block don't inherit it.

    Args:
        **given: `planner`, `store`, `platform`, `memory_mb`, `workers`, and whatever else
            `compute` takes.
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
    """A call's own options, and those of the blocks that it is in."""
    return {**_options.get(), **given}


def resolve(arguments: Mapping[str, Any]) -> Settings:
    """The settings in force, given some as arguments."""
    variables, file = _from_environment(), _from_file(Path.cwd() / FILE)
    _keep_tokens_apart(variables, file, arguments)
    _check_invoker(variables, file, arguments)
    settings = _updated(Settings(), variables, "the environment")
    settings = _updated(settings, file, FILE)
    return _updated(settings, arguments, "the call")


def _keep_tokens_apart(
    variables: dict[str, Any], file: dict[str, Any], arguments: Mapping[str, Any]
) -> None:
    """Forget tokens that would go to a gateway which is named elsewhere.

    A token belongs to the platform that is set in the same place. Where that names none, it is for
    the platform of the call; but what a file names gets nothing that isn't in the file, for it may
    have come with somebody else's code.
    """
    named = [each["platform"] for each in (arguments, file, variables) if "platform" in each]
    if named and named[0] is not None:
        for source in (file, variables):
            if source.get("platform", named[0]) != named[0]:
                source.pop("token", None)
        if "platform" in file and not {"platform"} & (arguments.keys() | variables.keys()):
            variables.pop("token", None)


def _check_invoker(
    variables: Mapping[str, Any], file: Mapping[str, Any], arguments: Mapping[str, Any]
) -> None:
    """An invoker gets a token of each run: one that only a file names gets none but the file's."""
    if "invoker" not in file or "token" in file or "invoker" in arguments:
        return
    if variables.get("invoker") != file["invoker"]:
        raise SettingsError(
            f"{FILE} names an invoker, which is sent a token of each run, but no token: set token "
            "there, too, or SHOAL_INVOKER to the same URL if you trust it."
        )


def _updated(settings: Settings, found: Mapping[str, Any], where: str) -> Settings:
    if not found:
        return settings
    for name, value in found.items():
        _check(name, value, where)
    return replace(settings, **found)


def _check(name: str, value: Any, where: str) -> None:
    if name not in _TYPES:
        raise SettingsError(_unknown(name, where))
    wanted = _TYPES[name]
    fits = isinstance(value, wanted) or (isinstance(value, int) and isinstance(1.0, wanted))
    if not fits or (isinstance(value, bool) and not isinstance(True, _without_int(wanted))):
        shown = f"a value of type {type(value).__name__}" if name in _SECRET else repr(value)
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
        return f"{where} has {name!r}, which is no setting: give it to a single compute()."
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
    for variable, text in os.environ.items():
        if variable.startswith("SHOAL_") and variable != PORTABLE:
            name = variable[len("SHOAL_") :].lower()
            found[name] = _parsed(name, text)
    return found


def _parsed(name: str, text: str) -> Any:
    """A variable's text as the type that its setting has; as it is if it doesn't fit."""
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


def _from_file(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    import tomllib

    try:
        with path.open(encoding="utf-8") as file:
            _check_trusted(path, os.fstat(file.fileno()), path.parent.stat())
            found = tomllib.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path} can't be read: {error}.") from error
    return _without_table(found)


def _without_table(found: dict[str, Any]) -> dict[str, Any]:
    """What a file sets, at its top or in a table `[shoal]`."""
    table = found.pop("shoal", {})
    for name, value in found.items():
        if isinstance(value, dict) and name not in NAMES:
            raise SettingsError(
                f"{FILE} has a table [{name}]: settings stand at the top, or in [shoal]."
            )
    if not isinstance(table, dict):
        raise SettingsError(f"{FILE} sets shoal to {table!r}; it must be a table: [shoal].")
    for name in table.keys() & found.keys():
        raise SettingsError(f"{FILE} sets {name} twice: at its top, and in [shoal].")
    return {**found, **table}


def _check_trusted(path: Path, file: os.stat_result, folder: os.stat_result) -> None:
    """Refuse what somebody else could have written: it says where code and data go."""
    if file.st_uid not in (os.getuid(), 0):
        raise SettingsError(
            f"{path} isn't used: it belongs to another user (number {file.st_uid}), who could have "
            f"your code and data sent anywhere. If you trust what is in it, make it yours: "
            f"`cp {FILE} {FILE}.mine && mv -f {FILE}.mine {FILE}`; else work in another folder."
        )
    if _others_write(file):
        raise SettingsError(
            f"{path} isn't used: others can write to it, and have your code and data sent "
            f"anywhere. Look at what is in it, and `chmod go-w {shlex.quote(str(path))}`."
        )
    if _others_write(folder) and not folder.st_mode & stat.S_ISVTX:
        raise SettingsError(
            f"{path} isn't used: others can write to its folder, and put another file in its "
            f"place. `chmod go-w {shlex.quote(str(path.parent))}`, or work in another folder."
        )


def _others_write(found: os.stat_result) -> bool:
    """Whether anybody but its owner and root can write to something."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _alone_in(found.st_gid)


def _alone_in(group: int) -> bool:
    """Whether a group is the user's own, as many systems make one for each ordinary user."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = user.pw_uid != 0 and user.pw_gid == group and found.gr_name == user.pw_name
    return own and set(found.gr_mem) <= {user.pw_name}
