"""What settings name, opened: history, cache, a gateway that is there already."""

from __future__ import annotations

import logging
from pathlib import Path

from shoal.errors import SettingsError
from shoal.metadata.history import History
from shoal.metadata.remote import RedisHistory
from shoal.metadata.sqlite import SqliteHistory
from shoal.platform.base import Platform
from shoal.platform.housing import hidden_folder
from shoal.platform.tokens import Token, address_of, reached_as, read_token
from shoal.settings import Settings
from shoal.storage.cache import Cache, CachePlace, cache_key
from shoal.storage.cachefolder import FolderCache
from shoal.storage.cacheshards import server_cache
from shoal.storage.places import place_of
from shoal.storage.resp import with_patience
from shoal.workflow import Workflow

log = logging.getLogger(__name__)


def open_history(settings: Settings, *, known: bool = False) -> History:
    """The runs of the past: beside the store if that is given, unless a folder is given too.

    Args:
        settings: What is set.
        known: The store has been reached: if it doesn't answer now, it is waited for.
    """
    if settings.store is not None and settings.folder is None:
        url = with_patience(place_of(settings.store, "history"), settings.reconnect_seconds)
        return RedisHistory(url, settings.history_runs, settings.latency, known=known)
    return SqliteHistory(settings.data_folder(), settings.history_runs)


def open_cache(settings: Settings) -> Cache:
    """The outputs that are kept across runs: on the store if that is given, else in the folder."""
    nbytes = settings.cache_mb * 2**20
    if settings.store is not None:
        return server_cache(settings.store, nbytes, settings.latency)
    return FolderCache(_cache_folder(settings), nbytes)


def _cache_folder(settings: Settings) -> Path:
    return settings.data_folder().absolute() / "cache"


def cache_place(workflow: Workflow, settings: Settings) -> CachePlace | None:
    """Where the outputs of a workflow's tasks are kept, if any task asks for it."""
    if not settings.cache_mb or not any(call.task.cache for call in workflow.calls.values()):
        return None
    try:
        key = cache_key(settings.data_folder())
    except OSError as error:
        log.warning("nothing is kept across runs: %s", error)
        return None
    where = settings.store or str(_cache_folder(settings))
    return CachePlace(where, key, settings.cache_mb * 2**20)


def remote_platform(settings: Settings) -> Platform | None:
    """The gateway that the settings name, if they name one."""
    if settings.platform is None:
        return None
    from shoal.platform.http import HttpPlatform

    url, token = gateway_access(settings.platform, settings.token)
    return HttpPlatform(url, token, settings.latency, settings.ca_file)


def gateway_access(url: str, token: str | None) -> tuple[str, Token]:
    """Where a gateway is reached, and its token: the one that is set, or that it left in a file."""
    if token is not None:
        return url, Token(token)
    found, where = _left_token(url)
    return where, Token(found, lambda: _left_token(url)[0])


def _left_token(url: str) -> tuple[str, str]:
    """The token that a gateway of this user has left for a URL, and the URL to reach it at."""
    path = token_file(address_of(url)[2])
    cure = (
        "set token where platform is set (in the call, in shoal.toml, or SHOAL_TOKEN beside "
        "SHOAL_PLATFORM) to what is in its token file"
    )
    if not path.exists():
        raise SettingsError(
            f"The gateway at {url} wants a token, and none of this user's gateways has left one "
            f"for it in {path}: start `shoal gateway`, or {cure}."
        )
    token, named = read_token(path)
    where = reached_as(url, named) if named else None
    if where is None:
        raise SettingsError(
            f"The gateway at {url} wants a token. The one in {path} belongs to "
            f"{named or 'an older gateway'} and is sent nowhere else: use that URL, or {cure}."
        )
    return token, where


def token_file(port: int) -> Path:
    """Where a stand-alone gateway of this user keeps its token."""
    return hidden_folder() / f"gateway-{port}.token"
