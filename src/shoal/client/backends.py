"""The backends of a session: its store, its platform and its history.

`Backends` opens and closes what a session uses. The functions open one backend each, as settings
name it, for commands that need no session.
"""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from shoal.client.notices import Notices, Room
from shoal.client.shared_folders import SharedFolders
from shoal.errors import HistoryError, SettingsError
from shoal.metadata.history import History, text_of
from shoal.metadata.remote import RedisHistory, SeparateHistory
from shoal.metadata.sqlite import SqliteHistory
from shoal.platform.base import Platform
from shoal.platform.gateway import LocalGateway
from shoal.platform.logs import RunLogs
from shoal.platform.nesting import refuse_in_sandbox
from shoal.platform.sandbox_env import SandboxEnv, hidden_folder, variable_names
from shoal.platform.server import GatewayServer
from shoal.platform.tokens import Token, address_of, new_token, reached_as, read_token
from shoal.private import data_folder
from shoal.settings import Settings
from shoal.storage.base import Store
from shoal.storage.cache import Cache, CacheLocation, cache_key
from shoal.storage.cache_folder import FolderCache
from shoal.storage.cache_shards import server_cache
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.plugged_in import store_maker
from shoal.storage.redis import RedisStore
from shoal.storage.resp import names_servers, with_certificates, with_reconnect_seconds
from shoal.storage.shard_urls import url_for
from shoal.storage.sharded import is_durable, open_store

if TYPE_CHECKING:
    from shoal.client.remote_code import RemoteCode
    from shoal.platform.engine import Engine
    from shoal.platform.events import Deployment
    from shoal.platform.fleet import Fleet
    from shoal.platform.http import HttpPlatform
    from shoal.platform.invocation import PythonEnvironment
    from shoal.platform.remote import RemotePlatform

log = logging.getLogger(__name__)

T = TypeVar("T")

WORKER_ENTRY = "shoal.worker.entry:handle"
"""What sandboxes call with each message, also those of jobs."""
_HISTORY_SECONDS = 1.0
"""How long to wait for a history's own server: runs do without it."""


class Backends:
    """The store, the platform and the history of a session, opened and closed together."""

    def __init__(
        self,
        settings: Settings,
        store: Store | str | None = None,
        platform: Platform | str | None = None,
    ) -> None:
        """Use the objects that are given; open or start what the settings name otherwise."""
        refuse_in_sandbox()
        self.settings = settings
        self.session = secrets.token_hex(8)
        """What the platform knows the session by."""
        self.notices = Notices()
        self.temporary_store: RedisStore | None = None
        """The embedded store, if what it holds ends with this process."""
        self.embedded_store = store is None and settings.store is None
        """Whether the store is a server that only processes of this machine reach."""
        self.platform_name = platform_name(settings.platform if _object(platform) is None else "")
        """What history knows the platform by."""
        self._history: History | None = None
        self._remote_code: RemoteCode | None = None
        self._lock = threading.Lock()
        self._of_platform, self._of_store = ExitStack(), ExitStack()
        try:
            self.platform = _object(platform) or self._open_platform()
            embedded = _object(platform) is None
            self.room = Room(self.platform, settings, self.notices, embedded=embedded)
            self.store = _object(store) or self._open_store()
        except BaseException:
            self.close()
            raise

    @property
    def lasting(self) -> bool:
        """Whether the store may outlive this process."""
        return self.settings.store is not None or self.settings.durable

    def limit(self, settings: Settings) -> float | None:
        """How long a worker may run: what the settings say, else what the platform does."""
        named = settings.function_seconds
        return self.platform.function_seconds if named is None else named

    @property
    def history(self) -> History:
        """The history of earlier runs, opened when it is first needed."""
        with self._lock:
            if self._history is None:
                self._history = open_history(self.settings, known=True)
            return self._history

    def report_history(self, error: HistoryError) -> None:
        """Warn once about a history that can't be used."""
        self.notices.say(f"{error} Until this is fixed, runs ignore history.")

    def remote_code(self, folders: SharedFolders) -> RemoteCode | None:
        """Ships the user's code to workers that don't see this machine's files; None: they do.

        Workers see them that are forked here, or find the same folders on this machine.
        """
        if isinstance(self.platform, LocalGateway) or folders.code_visible:
            return None
        from shoal.client.remote_code import RemoteCode
        from shoal.platform.environment import ANY

        with self._lock:
            if self._remote_code is None:
                settings = self.settings
                excluded, warn = variable_names(settings.exclude_files), self.notices.say
                expected = getattr(self.platform, "expected", ANY)
                self._remote_code = RemoteCode(
                    self.store.url, settings.latency, excluded, warn, expected
                )
                self._of_store.callback(self._remote_code.close)
            return self._remote_code

    def environment(self) -> PythonEnvironment | None:
        """What workers must match; None: they are forked from this process's environment."""
        if isinstance(self.platform, LocalGateway):
            return None
        from shoal.platform.environment import ANY, client_environment

        return client_environment(getattr(self.platform, "expected", ANY))

    def hurry(self) -> None:
        """Wait no longer for a history on a server that doesn't answer: the session closes."""
        if isinstance(self._history, RedisHistory):
            self._history.hurry()

    def close(self) -> None:
        """Close what was opened, the platform before the store in which it supervises runs."""
        with self._of_store, self._of_platform:
            pass
        if self._history is not None:
            self._history.close()

    def _open_platform(self) -> Platform:
        settings = self.settings
        remote = remote_platform(settings)
        if remote is not None:
            self._of_platform.callback(remote.close)
            remote.check_environment()
            return remote
        gateway = LocalGateway(
            WORKER_ENTRY,
            RunLogs(settings.data_folder() / "logs"),
            capacity=settings.capacity,
            idle_seconds=settings.idle_seconds,
            latency=settings.latency,
            function_seconds=settings.function_seconds,
            sandbox_env=SandboxEnv(
                settings.isolation, False, variable_names(settings.pass_variables)
            ),
        )
        self._of_platform.callback(gateway.close)
        server = GatewayServer(gateway, new_token())
        self._of_platform.callback(server.close)
        return gateway

    def _open_store(self) -> Store:
        settings = self.settings
        url, revive = settings.store, None
        if url is None:
            file = settings.data_folder() / "store" if settings.durable else None
            embedded = EmbeddedServer(file, settings.store_memory_mb)
            self._of_store.callback(embedded.close)
            url, revive = embedded.url, embedded.revive
        if names_servers(url):
            url = with_certificates(with_reconnect_seconds(url, settings.reconnect_seconds))
        store = open_store(url, settings.latency, revive=revive)
        self._of_store.callback(store.disconnect)
        if not self.lasting and isinstance(store, RedisStore):
            self.temporary_store = store
        if settings.durable and not is_durable(store):
            raise SettingsError(
                "durable is set, but the given store keeps nothing on disk: turn its append-only "
                "file on (`appendonly yes`), or leave the setting out."
            )
        return store


def _object(value: T | str | None) -> T | None:
    """An object that was passed instead of a URL."""
    return None if isinstance(value, str) else value


def platform_name(url: str | None) -> str:
    """The platform at a URL, or at several, without credentials and options.

    The embedded gateway's name is empty, and so is that of a platform that is passed as an object.
    """
    if not url:
        return ""
    several = url.split(",") if url.startswith(("http:", "https:")) else [url]
    parts = [urlsplit(each.strip()) for each in several]
    names = (f"{p.scheme}://{p.netloc.rpartition('@')[2]}{p.path.rstrip('/')}" for p in parts)
    return text_of(",".join(sorted(names)))


def open_history(settings: Settings, *, known: bool = False) -> History:
    """The history.

    It is where `history_url` says, else on the store's server if a store is set and no folder, else
    in the folder.

    Args:
        settings: What names these.
        known: Whether the store has been reached before: if it doesn't answer now, wait for it.
    """
    separate = settings.history_url
    if separate is not None and names_servers(separate):
        url = with_reconnect_seconds(url_for(separate, "history"), _HISTORY_SECONDS)
        return SeparateHistory(url, settings.history_runs, settings.latency)
    servers = _servers(settings)
    if servers is not None and settings.folder is None and separate is None:
        url = with_reconnect_seconds(url_for(servers, "history"), settings.reconnect_seconds)
        return RedisHistory(url, settings.history_runs, settings.latency, known=known)
    return SqliteHistory(history_folder(settings), settings.history_runs)


def history_folder(settings: Settings) -> Path:
    """The folder of a history that is on no server."""
    if settings.history_url is None:
        return settings.data_folder()
    scheme, colon, path = settings.history_url.rpartition("://")
    if scheme not in ("", "file") or not path:
        raise SettingsError(
            f"history_url names no history{f' ({scheme}://)' if colon else ''}: use the URL of a "
            "Valkey or Redis server (redis://HOST:PORT/DB), or a folder."
        )
    return data_folder(Path(path).expanduser(), named=True)


def _servers(settings: Settings) -> str | None:
    """The URL of the Valkey or Redis servers that are set.

    None: the store is embedded, or another package brings it. Then history and cache are in the
    folder.
    """
    url = settings.store
    return None if url is None or store_maker(url) is not None else url


def open_cache(settings: Settings) -> Cache:
    """The cache of outputs: on the store's server if a store is set, else in the folder."""
    nbytes, servers = settings.cache_mb * 2**20, _servers(settings)
    if servers is not None:
        return server_cache(servers, nbytes, settings.latency)
    return FolderCache(_cache_folder(settings), nbytes)


def _cache_folder(settings: Settings) -> Path:
    return settings.data_folder().absolute() / "cache"


def cache_location(settings: Settings, store: Store) -> CacheLocation | None:
    """Where outputs are cached; None if they aren't, or can't be.

    Remote workers can't use a folder of this machine. They need a `store` that they reach, and
    its server holds the cache.
    """
    if not settings.cache_mb:
        return None
    try:
        key = cache_key(settings.data_folder())
    except OSError as error:
        log.warning("outputs are not cached: %s", error)
        return None
    where = str(_cache_folder(settings)) if _servers(settings) is None else store.url
    return CacheLocation(where, key, settings.cache_mb * 2**20)


def remote_platform(settings: Settings) -> HttpPlatform | Fleet | RemotePlatform | None:
    """The gateway or the engine that the settings name; None if they name none."""
    if settings.platform is None:
        return None
    scheme, _, rest = settings.platform.partition(":")
    if rest and scheme not in ("http", "https"):
        return _engine_platform(settings.platform, settings)
    gateways = gateways_of(settings.platform, settings)
    if len(gateways) == 1:
        return gateways[0]
    from shoal.platform.fleet import Fleet

    return Fleet(gateways)


def gateways_of(platform: str, settings: Settings) -> list[HttpPlatform]:
    """The gateways at the URLs that a comma separates."""
    from shoal.platform.http import HttpPlatform

    return [
        HttpPlatform(
            *gateway_access(url.strip(), settings.token), settings.latency, settings.ca_file
        )
        for url in platform.split(",")
    ]


def _engine_platform(url: str, settings: Settings) -> RemotePlatform:
    """The platform of the engine at a URL."""
    from shoal.platform.engine import CheckedEngine
    from shoal.platform.remote import RemotePlatform

    engine, deployment = open_engine(url, settings)
    if isinstance(engine, CheckedEngine):
        try:
            engine.check()
        except BaseException:
            engine.close()
            raise
    return RemotePlatform(engine, deployment, WORKER_ENTRY)


def open_engine(url: str, settings: Settings) -> tuple[Engine, Deployment]:
    """The engine at a URL, and what its jobs need to know."""
    from shoal.platform.engine import maker_of
    from shoal.platform.events import Deployment

    make = maker_of(url)
    if settings.store is None:
        raise SettingsError(
            f"platform={url!r}: its workers meet in a store that they can reach. Set store= to the "
            "URL of a Valkey or Redis server."
        )
    folder = settings.data_folder().absolute()
    store = with_certificates(with_reconnect_seconds(settings.store, settings.reconnect_seconds))
    user = Deployment.of_user(folder, store)
    deployment = replace(user, token=settings.token, ca_file=settings.ca_file)
    return make(url, deployment, folder), deployment


def gateway_access(url: str, token: str | None) -> tuple[str, Token]:
    """A gateway's URL and token: the token that is set, or the one in the gateway's file."""
    if token is not None:
        return url, Token(token)
    found, where = _left_token(url)
    return where, Token(found, lambda: _left_token(url)[0])


def _left_token(url: str) -> tuple[str, str]:
    """The token in the file of this user's gateway, and the URL that it belongs to."""
    path = token_file(address_of(url)[2])
    cure = (
        "set token where platform is set (in the call, in shoal.toml, or SHOAL_TOKEN beside "
        "SHOAL_PLATFORM) to what is in its token file"
    )
    if not path.exists():
        raise SettingsError(
            f"The gateway at {url} wants a token, and no gateway of this user has written one to "
            f"{path}: start `shoal gateway`, or {cure}."
        )
    token, named = read_token(path)
    where = reached_as(url, named) if named else None
    if where is None:
        raise SettingsError(
            f"The gateway at {url} wants a token. The one in {path} belongs to "
            f"{named or 'an older gateway'} and goes to no other URL: use that one, or {cure}."
        )
    return token, where


def token_file(port: int) -> Path:
    """The file to which a stand-alone gateway of this user writes its token."""
    return hidden_folder() / f"gateway-{port}.token"
