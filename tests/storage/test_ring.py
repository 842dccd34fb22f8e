"""Consistent hashing: who has what is known to everybody, and little moves when places change."""

from __future__ import annotations

from collections import Counter

import pytest

from shoal.errors import SettingsError
from shoal.storage.cluster import even_tags, slot_of
from shoal.storage.places import is_cluster, is_spread, place_of, places
from shoal.storage.resp import parse_url, urls_in, with_patience
from shoal.storage.ring import POINTS, Ring

NAMES = [f"name {number}" for number in range(5000)]
PLACES = ["a:1/0", "b:1/0", "c:1/0"]


def test_each_place_has_forty_points() -> None:
    assert POINTS == 40
    assert Counter(Ring(PLACES)._places) == dict.fromkeys(PLACES, 40)


def test_the_order_of_the_places_does_not_matter() -> None:
    one, other = Ring(PLACES), Ring(reversed(PLACES))
    assert [one.place(name) for name in NAMES] == [other.place(name) for name in NAMES]


def test_each_place_has_a_fair_share() -> None:
    shares = Counter(map(Ring(PLACES).place, NAMES))
    assert all(0.2 < shares[place] / len(NAMES) < 0.5 for place in PLACES)


def test_what_moves_when_a_place_is_added_moves_to_it() -> None:
    before, after = Ring(PLACES), Ring([*PLACES, "d:1/0"])
    moved = {after.place(name) for name in NAMES if before.place(name) != after.place(name)}
    assert moved == {"d:1/0"}


def test_urls_are_told_apart_though_a_password_has_a_comma() -> None:
    urls = ["redis://:a,b@h1:1/0", "unix:///run/x.sock", "rediss://h2?ca_file=x"]
    assert urls_in(",".join(urls)) == urls


def test_patience_is_said_to_every_server() -> None:
    told = with_patience("redis://a,redis://b/1?reconnect_seconds=3", 2.5)
    assert [parse_url(url).reconnect_seconds for url in urls_in(told)] == [2.5, 3.0]


def test_a_cluster_is_one_place_however_many_nodes_are_named() -> None:
    url = "redis+cluster://:secret@a:7000,redis+cluster://:secret@b:7000"
    assert places(url) == {"cluster": url}
    assert is_cluster(url)
    assert is_spread(url)
    assert not is_spread("redis://a:7000")
    address = parse_url("rediss+cluster://a")
    assert (address.cluster, address.tls) == (True, True)


def test_what_there_is_once_is_on_one_of_the_servers() -> None:
    urls = ["redis://a", "redis://b", "redis://c"]
    assert place_of(",".join(urls), "history") in urls
    assert place_of("redis://a", "history") == "redis://a"


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
def test_wrong_urls_are_told_without_their_passwords(url: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        places(url)
    assert "secret" not in str(caught.value)


def test_tags_of_a_run_are_in_equal_ranges_of_the_slots() -> None:
    for run in ("1115-183017-fc0fe3", "another"):
        tags = even_tags(run, 24)
        assert [slot_of(f"shoal:{{{tag}}}:x") * 24 // 16384 for tag in tags] == list(range(24))
        assert all(tag.startswith(f"{run}/") for tag in tags)
