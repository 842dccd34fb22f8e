"""What the setting `store` names: a server, several servers, or a cluster."""

from __future__ import annotations

from shoal.errors import SettingsError
from shoal.storage.resp import parse_url, urls_in
from shoal.storage.ring import Ring


def shard_urls(store: str) -> dict[str, str]:
    """Return the URLs of a store's servers, by their names on the ring; a cluster is one shard."""
    urls = urls_in(store)
    addresses = [parse_url(url) for url in urls]
    clustered = [address.cluster for address in addresses]
    if all(clustered):
        return {"cluster": store}
    if any(clustered):
        raise SettingsError(
            "store names a cluster and other servers: name nodes of one cluster, "
            "or standalone servers."
        )
    found: dict[str, str] = {}
    for url, address in zip(urls, addresses, strict=True):
        name = f"{address.path or f'{address.host}:{address.port}'}/{address.db}"
        if name in found:
            raise SettingsError(f"store names {address} twice: each shard is a server of its own.")
        found[name] = url
    return found


def is_cluster(store: str) -> bool:
    """Whether a store is a cluster."""
    return "cluster" in shard_urls(store)


def is_spread(store: str) -> bool:
    """Whether a store is more than one server."""
    return len(shard_urls(store)) > 1 or is_cluster(store)


def url_for(store: str, what: str) -> str:
    """Return the URL of the one server of a store that holds something, such as its history."""
    urls = shard_urls(store)
    return urls[Ring(urls).shard_of(what)]
