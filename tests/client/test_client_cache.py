"""The cache of a resolver is bounded, in entries and in time."""

from dataclasses import replace

from perseid.client.attempts import Options, Query
from perseid.client.cache import MAX_LIFETIME, MAX_SIZE, Cache, expiry
from perseid.client.sites import ResponseTimes, Service
from perseid.records.record import TtlType, Value
from perseid.records.site import Site
from tests.client.worlds import HOST, OTHER_HOST, make_site, resolver_of, two_hosts

VALUE = Value.text(1, "URL", "https://example.org/")


def test_the_entry_that_was_not_used_for_longest_is_evicted() -> None:
    cache: Cache[int] = Cache(2)
    for number in range(2):
        cache.put(number, number, 10, 0)
    assert cache.get(0, 1) == 0
    cache.put(2, 2, 10, 0)
    assert [cache.get(number, 1) for number in range(3)] == [0, None, 2]
    cache.drop(0)
    cache.drop(0)
    assert len(cache) == 1
    cache.clear()
    assert len(cache) == 0


def test_an_entry_expires_at_its_time_or_after_an_hour() -> None:
    cache: Cache[str] = Cache()
    cache.put("short", "", 10, 0)
    cache.put("long", "", 1e9, 0)
    cache.put("past", "", 0, 0)
    assert [cache.get(key, 9.9) is not None for key in ("short", "long", "past")] == [True, True, False]
    assert cache.get("short", 10) is None
    assert cache.get("long", MAX_LIFETIME) is None
    assert len(cache) == 0


def test_the_bytes_of_a_cache_are_bounded() -> None:
    cache: Cache[str] = Cache()
    for number in range(100):
        cache.put(number, "", 10, 0, MAX_SIZE // 10)
    assert len(cache) == 9
    cache.put(99, "", 10, 0, MAX_SIZE // 8 + 1)
    assert len(cache) == 8, "too large to be stored, and the old one is wrong"


def test_a_cache_without_entries_keeps_nothing() -> None:
    cache: Cache[str] = Cache(0)
    cache.put("key", "", 10, 0)
    assert len(cache) == 0


def test_the_first_value_that_expires_decides() -> None:
    assert expiry([], 100) == 100 + MAX_LIFETIME
    assert expiry([VALUE, replace(VALUE, ttl=5)], 100) == 105
    assert expiry([replace(VALUE, ttl=7, ttl_type=TtlType.ABSOLUTE)], 100) == 7


def test_slow_sites_are_asked_last_and_again_after_a_while() -> None:
    times = ResponseTimes()
    peers = Service([make_site(HOST), make_site(OTHER_HOST)]).find_peers(b"12345/x")
    times.record_failure(HOST, 0)
    assert [peer.host for peer in times.order(peers, 0)] == [OTHER_HOST, HOST]
    orders = {tuple(peer.host for peer in times.order(peers, 1_000)) for _ in range(200)}
    assert len(orders) == 2


def test_everything_that_is_kept_counts_toward_the_limit() -> None:
    """Services that others run decide how many values, servers and interfaces there are; most are short."""

    def measure(site: Site, *values: Value) -> list[int]:
        world = two_hosts(site=site)
        world.hosts[HOST].records["12345/X"] = values
        core = resolver_of(world).core
        world.run(core.resolve(Query("12345/x"), Options()))
        return [sum(size for *_, size in cache._entries.values()) for cache in (core.answers, core.services)]

    server = make_site(HOST).servers[0]
    interfaces = server.interfaces * 100
    large = replace(make_site(HOST), servers=(replace(server, interfaces=interfaces),))
    values = [Value(index, "T", b"") for index in range(1, 1_001)]
    few, many, long = measure(make_site(HOST), VALUE), measure(make_site(HOST), *values), measure(large, VALUE)
    assert many[0] - few[0] > 1_000 * 250, "about what `tracemalloc` shows"
    assert long[1] - few[1] > len(interfaces) * 90
