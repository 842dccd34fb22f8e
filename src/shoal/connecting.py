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
from shoal.platform.tokens import read_token
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
    from shoal.platform.http import HttpPlatform, gateway_address

    gateway_address(settings.platform)  # before a token is asked for
    return HttpPlatform(
        settings.platform, gateway_token(settings), settings.latency, settings.ca_file
    )


def gateway_token(settings: Settings) -> str:
    """The gateway's token: given, or in the file that a gateway of this user wrote."""
    if settings.token is not None:
        return settings.token
    path = token_file()
    if not path.exists():
        raise SettingsError(
            f"The gateway at {settings.platform} wants a token: set SHOAL_TOKEN, or token in "
            "shoal.toml, to what `shoal gateway` wrote to its token file."
        )
    return read_token(path)


def token_file() -> Path:
    """Where a stand-alone gateway of this user keeps its token."""
    return hidden_folder() / "gateway.token"
