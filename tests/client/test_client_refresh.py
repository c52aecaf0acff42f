"""Root information is read again when it is old, and replaced only by what the known keys verify (native, 11.2)."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perseid.client import resolution
from perseid.client.errors import Refused
from perseid.client.lookup import REFRESH_PAUSE, ROOT_LIFETIME
from perseid.client.resolution import AsyncResolver, Resolver
from perseid.client.roots import Root
from perseid.client.transport import AsyncTransport, Steps
from perseid.records.json_form import value_to_json
from perseid.records.record import Value
from perseid.wire.codes import ResponseCode
from perseid.wire.responses import Failure
from tests.client.worlds import (
    HOST,
    OTHER_HOST,
    ROOT_HOST,
    URL,
    Host,
    T,
    World,
    make_site,
    refuse,
    resolver_of,
    site_value,
    two_hosts,
)
from tests.wire.key_material import DSA_KEY, SERVER_KEY

KNOWN = make_site(ROOT_HOST, key=SERVER_KEY)
MOVED = replace(make_site(OTHER_HOST, key=DSA_KEY), serial=2)
ROOT_RECORD = "0.NA/0.NA"
RECENT = ROOT_LIFETIME - 1


def make_world() -> World:
    """A root that has moved to another host and key, and says so."""
    world = two_hosts()
    world.hosts[ROOT_HOST].records[ROOT_RECORD] = (site_value(MOVED),)
    world.hosts[OTHER_HOST] = Host(dict(world.hosts[ROOT_HOST].records), DSA_KEY, serial=2)
    return world


def make_root(world: World, age: float = 0.0, **fields: object) -> Root:
    return Root((KNOWN,), "the test root", updated=world.now - age, **fields)  # type: ignore[arg-type]


def set_serial(host: str, serial: int) -> Callable[[World], None]:
    return lambda world: setattr(world.hosts[host], "serial", serial)


def report_outdated(world: World) -> None:
    world.hosts[ROOT_HOST].records["0.NA/12345"] = (ResponseCode.OUT_OF_DATE_SITE_INFO, Failure())


def change_nothing(_world: World) -> None:
    """The root is as it was."""


@pytest.mark.parametrize(
    ("change", "age", "fields", "is_due"),
    [
        (change_nothing, 0.0, {}, False),
        (change_nothing, RECENT, {}, False),
        (change_nothing, ROOT_LIFETIME, {}, True),
        (change_nothing, -2 * ROOT_LIFETIME, {}, True),
        (set_serial(ROOT_HOST, 2), 0.0, {}, True),
        (set_serial(ROOT_HOST, 0), 0.0, {}, False),
        (set_serial(ROOT_HOST, -1), 0.0, {}, False),
        (set_serial(HOST, 2), 0.0, {}, False),
        (report_outdated, 0.0, {}, True),
        (set_serial(ROOT_HOST, 2), ROOT_LIFETIME, {"resolver": (make_site(HOST),)}, False),
        (set_serial(ROOT_HOST, 2), ROOT_LIFETIME, {"local_sites": {ROOT_RECORD: (KNOWN,)}}, False),
    ],
    ids=[
        "new",
        "recent",
        "old",
        "of the future",
        "higher serial number",
        "lower one",
        "unknown one",
        "higher one of another service",
        "reported as outdated",
        "caching server",
        "configured",
    ],
)
def test_when_root_information_is_read_again(
    change: Callable[[World], None], age: float, fields: dict[str, object], is_due: bool
) -> None:
    world = two_hosts()
    change(world)
    resolver = resolver_of(world, make_root(world, age, **fields))
    with contextlib.suppress(Refused):  # by a server that demands new information
        resolver.resolve("12345/x")
    assert resolver.core.claim_refresh() is is_due
    assert not resolver.core.claim_refresh(), "one at a time"
    world.now += REFRESH_PAUSE
    if age != RECENT:
        assert resolver.core.claim_refresh() is is_due, "a failed attempt is repeated after a pause"


def services(*names: str) -> tuple[Value, ...]:
    return tuple(Value.text(number, "HS_SERV", name) for number, name in enumerate(names, 1))


REFRESHES: dict[str, tuple[Callable[[World], None], bool]] = {
    "sites": (change_nothing, True),
    "service": (
        lambda world: world.hosts[ROOT_HOST].records.update(
            {ROOT_RECORD: services("0.NA/root"), "0.NA/ROOT": (site_value(MOVED),)}
        ),
        True,
    ),
    "service elsewhere": (
        lambda world: (
            world.hosts[ROOT_HOST].records.update({ROOT_RECORD: services("12345/root")}),
            world.hosts[HOST].records.update({"12345/ROOT": (site_value(MOVED),)}),
        )[0],
        True,
    ),
    "service elsewhere with a wrong key": (
        lambda world: (
            world.hosts[ROOT_HOST].records.update({ROOT_RECORD: services("12345/root")}),
            world.hosts.update({HOST: Host({"12345/ROOT": (site_value(MOVED),)}, DSA_KEY)}),
        )[0],
        False,
    ),
    "wrong key": (lambda world: setattr(world.hosts[ROOT_HOST], "key", DSA_KEY), False),
    "not reachable": (lambda world: setattr(world.hosts[ROOT_HOST], "fault", refuse), False),
    "no record": (lambda world: world.hosts[ROOT_HOST].records.__delitem__(ROOT_RECORD), False),
    "no sites": (lambda world: world.hosts[ROOT_HOST].records.update({ROOT_RECORD: (URL,)}), False),
    "broken site": (
        lambda world: world.hosts[ROOT_HOST].records.update({ROOT_RECORD: (Value(1, "HS_SITE", b"broken"),)}),
        False,
    ),
    "site without servers": (
        lambda world: world.hosts[ROOT_HOST].records.update({ROOT_RECORD: (site_value(make_site()),)}),
        False,
    ),
    "endless services": (
        lambda world: world.hosts[ROOT_HOST].records.update(
            {ROOT_RECORD: services("0.NA/S0")} | {f"0.NA/S{n}": services(f"0.NA/S{n + 1}") for n in range(100)}
        ),
        False,
    ),
}


@pytest.mark.parametrize("name", REFRESHES)
def test_only_verified_root_information_is_used(name: str) -> None:
    change, is_accepted = REFRESHES[name]
    world = make_world()
    resolver = resolver_of(world, make_root(world, ROOT_LIFETIME, local_addresses={"198.51.100.1": HOST}))
    change(world)
    assert world.run(resolver.core.refresh()) is is_accepted
    assert resolver.core.root.sites == ((MOVED,) if is_accepted else (KNOWN,))
    assert resolver.core.root.local_addresses == {"198.51.100.1": HOST}
    assert sum(len(host.asked) for host in world.hosts.values()) <= 40
    if is_accepted:
        world.hosts[ROOT_HOST].asked.clear()
        assert resolver.resolve("12345/x", certified=True, use_cache=False).is_certified
        assert world.hosts[ROOT_HOST].asked == []
        assert not resolver.core.claim_refresh()


def test_a_root_without_a_record_is_asked_once_a_day() -> None:
    world = two_hosts()
    resolver = resolver_of(world, make_root(world, ROOT_LIFETIME))
    assert resolver.core.claim_refresh()
    assert not world.run(resolver.core.refresh())
    world.now += ROOT_LIFETIME - 1
    assert not resolver.core.claim_refresh()
    world.now += 1
    assert resolver.core.claim_refresh()


def wait_for_sites(resolver: Resolver) -> None:
    deadline = time.monotonic() + 30
    while resolver._core.root.sites != (MOVED,):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_resolvers_refresh_beside_resolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world()
    root = Root((KNOWN,), updated=1.0)

    async def run(_transport: AsyncTransport, steps: Steps[T]) -> T:
        await asyncio.sleep(0)
        return world.run(steps)

    monkeypatch.setattr(resolution, "run", world.run)
    monkeypatch.setattr(AsyncTransport, "run", run)
    monkeypatch.setattr("perseid.client.attempts.time.time", world.clock)
    resolver = Resolver(root)
    assert resolver.resolve("12345/x").values == (URL,)
    wait_for_sites(resolver)

    async def resolve() -> None:
        async with AsyncResolver(root) as resolver:
            assert (await resolver.resolve("12345/x")).values == (URL,)
            assert resolver._refresh is not None
            assert resolver._core.root.sites == (KNOWN,), "the resolution has not waited"
            await asyncio.wait_for(resolver._refresh, 30)
            assert resolver._core.root.sites == (MOVED,)
        async with AsyncResolver(root) as resolver:
            await resolver.resolve("12345/x")
        assert resolver._refresh is not None
        assert resolver._refresh.cancelled()

    asyncio.run(resolve())


@pytest.mark.parametrize(
    ("updated", "expected"), [(1_794_724_100_000, 1_794_724_100.0), (-1, None), (10**400, None), ("yesterday", None)]
)
def test_bootstrap_data_says_when_it_was_current(updated: object, expected: float | None, tmp_path: Path) -> None:
    values = [value_to_json(site_value(KNOWN))]
    data = {"lastUpdate": updated, "handles": {ROOT_RECORD: {"handle": ROOT_RECORD, "values": values}}}
    (tmp_path / "bootstrap_handles").write_text(json.dumps(data))
    before = time.time()
    for path in (tmp_path, tmp_path / "bootstrap_handles"):
        found = Root.load(path).updated
        assert found == expected if expected is not None else before <= found <= time.time()
