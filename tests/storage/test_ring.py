"""Consistent hashing: every client finds a key's shard, and few keys move when shards change."""

from __future__ import annotations

from collections import Counter

import pytest

from shoal.errors import SettingsError
from shoal.storage.cluster import even_tags, slot_of
from shoal.storage.resp import parse_url, urls_in, with_reconnect_seconds
from shoal.storage.ring import POINTS, Ring
from shoal.storage.shard_urls import is_cluster, is_spread, shard_urls, url_for

NAMES = [f"name {number}" for number in range(5000)]
SHARDS = ["a:1/0", "b:1/0", "c:1/0"]


def test_each_shard_has_forty_points() -> None:
    assert POINTS == 40
    assert Counter(Ring(SHARDS)._shards) == dict.fromkeys(SHARDS, 40)


def test_the_order_of_the_shards_does_not_matter() -> None:
    one, other = Ring(SHARDS), Ring(reversed(SHARDS))
    assert [one.shard_of(name) for name in NAMES] == [other.shard_of(name) for name in NAMES]


def test_each_shard_has_a_fair_share() -> None:
    shares = Counter(map(Ring(SHARDS).shard_of, NAMES))
    assert all(0.2 < shares[shard] / len(NAMES) < 0.5 for shard in SHARDS)


def test_keys_that_move_when_a_shard_is_added_move_to_it() -> None:
    before, after = Ring(SHARDS), Ring([*SHARDS, "d:1/0"])
    moved = {
        after.shard_of(name) for name in NAMES if before.shard_of(name) != after.shard_of(name)
    }
    assert moved == {"d:1/0"}


def test_urls_are_separated_even_if_a_password_has_a_comma() -> None:
    urls = ["redis://:a,b@h1:1/0", "unix:///run/x.sock", "rediss://h2?ca_file=x"]
    assert urls_in(",".join(urls)) == urls


def test_the_waiting_time_applies_to_every_server() -> None:
    told = with_reconnect_seconds("redis://a,redis://b/1?reconnect_seconds=3", 2.5)
    assert [parse_url(url).reconnect_seconds for url in urls_in(told)] == [2.5, 3.0]


def test_a_cluster_is_one_shard_however_many_nodes_are_named() -> None:
    url = "redis+cluster://:secret@a:7000,redis+cluster://:secret@b:7000"
    assert shard_urls(url) == {"cluster": url}
    assert is_cluster(url)
    assert is_spread(url)
    assert not is_spread("redis://a:7000")
    address = parse_url("rediss+cluster://a")
    assert (address.cluster, address.tls) == (True, True)


def test_data_stored_once_is_on_one_of_the_servers() -> None:
    urls = ["redis://a", "redis://b", "redis://c"]
    assert url_for(",".join(urls), "history") in urls
    assert url_for("redis://a", "history") == "redis://a"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://a,redis://:secret@a:6379/0", "names a:6379 twice"),
        ("redis://a,redis+cluster://:secret@b", "a cluster and other servers"),
        ("redis+ring://:secret@a", "redis\\+cluster:// for a cluster"),
        ("unix+cluster://:secret@/run/x.sock", "redis\\+cluster:// for a cluster"),
        ("redis://a,redis://:secret@b:port", "numbers for port"),
    ],
)
def test_wrong_urls_are_errors_that_hide_passwords(url: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        shard_urls(url)
    assert "secret" not in str(caught.value)


def test_tags_of_a_run_are_in_equal_ranges_of_the_slots() -> None:
    for run in ("1115-183017-fc0fe3", "another"):
        tags = even_tags(run, 24)
        assert [slot_of(f"shoal:{{{tag}}}:x") * 24 // 16384 for tag in tags] == list(range(24))
        assert all(tag.startswith(f"{run}/") for tag in tags)
