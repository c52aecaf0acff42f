"""The rules of resolution, in a world without sockets: services, referrals, attempts, certification, cache, aliases."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from perseid.client.errors import ClientError, NotFound, ProtocolError, Refused, Unreachable
from perseid.client.lookup import MAX_ALIASES, MAX_REFERRALS
from perseid.client.roots import Root
from perseid.records.partition import find_server_index
from perseid.records.record import Permission, Value
from perseid.records.site import Site, Transport
from perseid.wire.codes import DEFAULT_FLAGS, OpFlag, ResponseCode
from perseid.wire.message import Envelope, Message
from perseid.wire.responses import Failure, Referral, ResolutionResult
from tests.client.worlds import (
    HOST,
    OTHER_HOST,
    ROOT_HOST,
    URL,
    Answer,
    Host,
    make_site,
    only,
    refuse,
    resolver_of,
    site_value,
    two_hosts,
    with_ttl,
)
from tests.wire.key_material import DSA_KEY, SERVER_KEY


def refer(code: ResponseCode, *values: Value, handle: bytes = b"") -> Answer:
    return code, Referral(handle, values or None)


def sent(host: Host, number: int = -1) -> Message:
    data = host.exchanges[number].data[0]
    return Message.from_bytes(Envelope.from_bytes(data), data[20:], 1_794_724_100)


def test_a_handle_is_found_through_its_prefix_handle() -> None:
    world = two_hosts()
    result = resolver_of(world).resolve("12345/x", trace=True)
    assert (result.handle, result.target, result.values) == ("12345/x", "https://example.org/1", (URL,))
    assert world.hosts[ROOT_HOST].asked == ["0.NA/12345"]
    assert [(step.action, step.outcome) for step in result.trace] == [
        ("ask", "SUCCESS"),
        ("service", "sites: 1"),
        ("ask", "SUCCESS"),
    ]
    assert result.trace[0].address == f"udp://{ROOT_HOST}:2641"
    assert all(step.started >= 0 and step.duration >= 0 for step in result.trace)
    assert result.is_authoritative
    assert not result.is_certified


def test_requests_have_the_flags_and_counts_of_deployed_clients() -> None:
    world = two_hosts()
    resolver_of(world).resolve("12345/x", ("URL",))
    prefix, handle = sent(world.hosts[ROOT_HOST]), sent(world.hosts[HOST])
    assert (prefix.header.flags, prefix.header.recursion, prefix.header.site_serial) == (DEFAULT_FLAGS, 1, 1)
    assert (handle.header.flags, handle.header.recursion, handle.version) == (DEFAULT_FLAGS, 0, (2, 11))
    resolver_of(world).resolve("12345/x", authoritative=True, certified=True)
    extra = OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST
    assert sent(world.hosts[HOST]).header.flags == DEFAULT_FLAGS | extra | OpFlag.AUTHORITATIVE


SERVICE = site_value(make_site(HOST))
SERV = Value.text(2, "HS_SERV", "200/service")


@pytest.mark.parametrize(
    "records",
    [
        {"0.NA/12345": (SERVICE,)},
        {"0.NA/12345": (site_value(make_site(HOST), 1, "HS_SITE.6"),)},
        {
            "0.NA/12345": (SERV,),
            "0.NA/200": (site_value(make_site(ROOT_HOST, key=SERVER_KEY)),),
            "200/SERVICE": (SERVICE,),
        },
        {"0.NA/12345": (Value.text(1, "HS_SERV", "0.na/service"),), "0.NA/SERVICE": (SERVICE,)},
        {"0.NA/12345": (Value(1, "HS_SITE", b"broken"), replace(SERVICE, index=2))},
        {"0.NA/12345": (Value.text(1, "HS_SERV", "0.NA/0.NA"),), "12345/X": (URL,)},
        {"0.NA/12345": (Value.text(1, "DESC", "the root hosts it"),), "12345/X": (URL,)},
    ],
    ids=["site", "IPv6 site", "service", "service at the root", "broken site", "root service", "no service"],
)
def test_the_service_of_a_prefix_is_found(records: dict[str, tuple[Value, ...] | Answer]) -> None:
    world = two_hosts()
    world.hosts[ROOT_HOST].records = records
    assert resolver_of(world).resolve("12345/x", certified=True).target == "https://example.org/1"


def test_a_prefix_handle_is_read_from_the_delegated_site() -> None:
    world = two_hosts()
    delegated = site_value(make_site(HOST), 3, "HS_SITE.PREFIX")
    world.hosts[ROOT_HOST].records["0.NA/12345.6"] = refer(ResponseCode.PREFIX_REFERRAL, delegated)
    world.hosts[HOST].records["0.NA/12345.6"] = (site_value(make_site(OTHER_HOST, key=DSA_KEY)),)
    world.hosts[OTHER_HOST] = Host({"12345.6/X": (URL,)}, DSA_KEY)
    result = resolver_of(world).resolve("12345.6/x", certified=True, trace=True)
    assert result.is_certified
    assert [step.action for step in result.trace] == ["ask", "referral", "ask", "service", "ask"]


@pytest.mark.parametrize(
    "referral",
    [
        refer(ResponseCode.SERVICE_REFERRAL, site_value(make_site(OTHER_HOST))),
        refer(ResponseCode.SERVICE_REFERRAL, handle=b"0.NA/other"),
        refer(ResponseCode.SERVICE_REFERRAL, Value.text(1, "HS_SERV", "0.NA/other")),
    ],
    ids=["values", "handle", "service"],
)
def test_a_service_referral_is_followed(referral: Answer) -> None:
    world = two_hosts()
    world.hosts[ROOT_HOST].records["0.NA/OTHER"] = (site_value(make_site(OTHER_HOST)),)
    world.hosts[HOST].records["12345/X"] = referral
    world.hosts[OTHER_HOST] = Host({"12345/X": (URL,)})
    assert resolver_of(world).resolve("12345/x", certified=True).values == (URL,)


@pytest.mark.parametrize(
    ("referral", "error", "text"),
    [
        (
            refer(ResponseCode.SERVICE_REFERRAL, site_value(make_site(HOST))),
            ProtocolError,
            f"{MAX_REFERRALS} referrals",
        ),
        (refer(ResponseCode.SERVICE_REFERRAL), ProtocolError, "referral without sites"),
        (refer(ResponseCode.PREFIX_REFERRAL, site_value(make_site(HOST))), Refused, "PREFIX_REFERRAL"),
    ],
    ids=["endless", "empty", "prefix referral for a handle"],
)
def test_a_useless_referral_is_an_error(referral: Answer, error: type[ClientError], text: str) -> None:
    world = two_hosts()
    world.hosts[HOST].records["12345/X"] = referral
    with pytest.raises(error, match=text):
        resolver_of(world).resolve("12345/x")
    assert len(world.hosts[HOST].asked) <= MAX_REFERRALS + 1


def test_services_that_need_each_other_are_an_error() -> None:
    world = two_hosts()
    world.hosts[ROOT_HOST].records = {"0.NA/12345": (Value.text(1, "HS_SERV", "12345/service"),)}
    with pytest.raises(ProtocolError, match=r"only be found through 0\.NA/12345 itself"):
        resolver_of(world).resolve("12345/x")


def test_endless_services_end_at_the_limit_of_lookups() -> None:
    world = two_hosts()
    chain = {f"0.NA/S{number}": (Value.text(1, "HS_SERV", f"0.NA/S{number + 1}"),) for number in range(100)}
    world.hosts[ROOT_HOST].records = {**chain, "0.NA/12345": (Value.text(1, "HS_SERV", "0.NA/S0"),)}
    with pytest.raises(ProtocolError, match="more than 40 lookups"):
        resolver_of(world).resolve("12345/x")


@pytest.mark.parametrize(
    ("handle", "types", "error", "code", "problem_type", "text"),
    [
        ("12345/y", (), NotFound, 100, "not-found", "handle 12345/y does not exist"),
        ("12345/x", ("EMAIL",), NotFound, 200, "not-found", "no such public values"),
        ("999/x", (), NotFound, 100, "not-found", "prefix 999 is not registered at the test root"),
        ("12345/busy", (), Refused, 3, "busy", "too much to do"),
        ("12345/moved", (), NotFound, 301, "prefix-not-hosted", "does not host its prefix"),
        ("12345/bad", (), Refused, 102, "invalid-name", "INVALID_HANDLE"),
    ],
)
def test_a_refusal_has_its_code_and_problem_type(
    handle: str, types: tuple[str, ...], error: type[ClientError], code: int, problem_type: str, text: str
) -> None:
    world = two_hosts()
    world.hosts[HOST].records |= {
        "12345/BUSY": (ResponseCode.SERVER_TOO_BUSY, Failure.of("too much to do")),
        "12345/MOVED": (ResponseCode.SERVER_NOT_RESP, Failure()),
        "12345/BAD": (ResponseCode.INVALID_HANDLE, Failure()),
    }
    with pytest.raises(error, match=text) as caught:
        resolver_of(world).resolve(handle, types)
    assert (type(caught.value), caught.value.code, caught.value.problem_type) == (error, code, problem_type)


# Attempts


def test_attempts_go_from_udp_to_tcp_to_http() -> None:
    every = (Transport.HTTP, Transport.TCP, Transport.UDP)
    world = two_hosts(site=make_site(HOST, transports=every, attributes={"domain": "id.example.org", "path": "hs"}))
    host = world.hosts[HOST]
    host.fault = only(Transport.HTTP)
    assert resolver_of(world).resolve("12345/x").target
    transports = [exchange.address.transport for exchange in host.exchanges]
    assert transports == [Transport.UDP] * 3 + [Transport.TCP, Transport.HTTP]
    assert [exchange.timeout for exchange in host.exchanges[:3]] == [0.5, 1.0, 1.5]
    assert len({exchange.request_id for exchange in host.exchanges}) == 1
    assert host.exchanges[-1].data[0].startswith(b"POST /hs/12345%2Fx HTTP/1.1\r\nHost: id.example.org:2641\r\n")


def test_a_dead_site_costs_one_wait_and_is_avoided_afterwards() -> None:
    world = two_hosts()
    sites = [make_site("192.0.2.9"), make_site(HOST)]
    world.hosts[ROOT_HOST].records["0.NA/12345"] = tuple(site_value(site, index) for index, site in enumerate(sites, 1))
    resolver = resolver_of(world)
    resolver.core.times.record(HOST, 5.0, world.now)  # so that the dead one is asked first
    assert resolver.resolve("12345/x").target
    assert world.now == pytest.approx(1_794_724_100.5)
    trace = resolver.resolve("12345/x", use_cache=False, trace=True).trace
    assert [step.address for step in trace if step.handle == "12345/x"] == [f"udp://{HOST}:2641"]


def test_a_refused_connection_is_not_tried_again_by_the_same_transport() -> None:
    world = two_hosts()
    world.hosts[HOST].fault = refuse
    with pytest.raises(Unreachable, match=r"udp://192.0.2.2:2641: Connection refused; tcp://") as caught:
        resolver_of(world).resolve("12345/x")
    assert caught.value.advice == "Check the network, then retry"
    assert len(world.hosts[HOST].exchanges) == 2


def test_a_failing_site_is_replaced_by_another_one() -> None:
    world = two_hosts(site=make_site(HOST))
    world.hosts[HOST].records["12345/X"] = (ResponseCode.ERROR, Failure.of("disk failure"))
    world.hosts[OTHER_HOST] = Host({"12345/X": (URL,)})
    world.hosts[ROOT_HOST].records["0.NA/12345"] = (SERVICE, site_value(make_site(OTHER_HOST), 2))
    for _ in range(5):
        assert resolver_of(world).resolve("12345/x").values == (URL,)


def test_the_whole_resolution_ends_at_its_timeout() -> None:
    world = two_hosts()
    del world.hosts[HOST]
    with pytest.raises(Unreachable, match="timed out"):
        resolver_of(world).resolve("12345/x", timeout=1.0)
    assert world.now == pytest.approx(1_794_724_101.0)


def test_the_server_of_a_site_is_chosen_by_the_hash_of_the_handle() -> None:
    hosts = [f"192.0.2.{number}" for number in range(10, 14)]
    site = make_site(*hosts)
    records = {f"12345/{number}": (URL,) for number in range(20)}
    world = two_hosts(site=site)
    world.hosts |= {host: Host(dict(records)) for host in hosts}
    resolver = resolver_of(world)
    for handle in records:
        resolver.resolve(handle)
        expected = find_server_index(handle.encode(), site.hash_option, len(hosts))
        assert [host for host in hosts if handle in world.hosts[host].asked] == [hosts[expected]]


def test_only_primary_sites_are_asked_for_authoritative_answers() -> None:
    world = two_hosts(site=make_site(HOST, primary=False))
    with pytest.raises(Unreachable, match="no server has an address for queries"):
        resolver_of(world).resolve("12345/x", authoritative=True)
    world.hosts[ROOT_HOST].records["0.NA/12345"] = (
        site_value(make_site(HOST, primary=False)),
        site_value(make_site(OTHER_HOST), 2),
    )
    world.hosts[OTHER_HOST] = Host({"12345/X": (URL,)})
    assert resolver_of(world).resolve("12345/x", authoritative=True).is_authoritative
    assert world.hosts[HOST].asked == []


@pytest.mark.parametrize(
    "site",
    [
        make_site("0.0.0.0", attributes={"domain": "id.example.org"}),
        make_site("192.0.2.9", attributes={"alt_addr": HOST}),
        make_site("192.0.2.8", "192.0.2.9", attributes={"alt_addr.0": HOST, "alt_addr.1": HOST}),
    ],
    ids=["domain", "alternative", "alternatives"],
)
def test_attributes_of_a_site_name_other_addresses(site: Site) -> None:
    world = two_hosts(site=site)
    world.domains["id.example.org"] = ("192.0.2.99", HOST)
    assert resolver_of(world).resolve("12345/x").target


def test_a_domain_that_is_unknown_is_not_asked() -> None:
    for attributes in ({"domain": "id.example.org"}, {}):
        world = two_hosts(site=make_site("0.0.0.0", attributes=attributes))
        with pytest.raises(Unreachable, match="no server has an address for queries"):
            resolver_of(world).resolve("12345/x")


def test_the_time_limit_covers_the_look_ups_of_domains() -> None:
    names = [f"id{number}.example.org" for number in range(9)]
    sites = [make_site("0.0.0.0", attributes={"domain": name}) for name in names]
    world = two_hosts()
    world.hosts[ROOT_HOST].records["0.NA/12345"] = tuple(map(site_value, sites, range(1, 10)))
    world.domains = dict.fromkeys(names, ())
    with pytest.raises(Unreachable, match="the time limit of 12 s is over"):
        resolver_of(world).resolve("12345/x", timeout=12.0)
    assert world.now == pytest.approx(1_794_724_112.0)


def test_addresses_that_are_not_allowed_are_not_contacted() -> None:
    world = two_hosts()
    resolver = resolver_of(world, address_filter=lambda address, port: (str(address), port) == (ROOT_HOST, 2641))
    with pytest.raises(Unreachable, match="this address is not allowed"):
        resolver.resolve("12345/x")
    assert world.hosts[HOST].exchanges == []


def test_local_sites_a_caching_server_and_private_addresses_are_used() -> None:
    world = two_hosts()
    sites = (make_site(ROOT_HOST, key=SERVER_KEY),)
    local = Root(sites, local_sites={"0.NA/12345": (make_site("203.0.113.5"),)}, local_addresses={"203.0.113.5": HOST})
    assert resolver_of(world, local).resolve("12345/x").target
    assert resolver_of(world, Root((), resolver=(make_site(HOST),))).resolve("12345/x").target
    assert world.hosts[ROOT_HOST].asked == []


# Networks that lose, repeat and reorder datagrams

LONG = tuple(Value(index, "DATA", bytes([index]) * 900) for index in range(1, 9))


def shuffle(packets: list[bytes]) -> list[bytes]:
    return random.Random(7).sample(packets, len(packets))


@pytest.mark.parametrize(
    "change",
    [
        list,
        shuffle,
        lambda packets: [packet for packet in packets for _ in range(3)],
        lambda packets: [*packets[:1], b"\0", b"\2\13\2\13" + bytes(16), *packets],
    ],
    ids=["unchanged", "reordered", "repeated", "with others between"],
)
def test_a_long_response_arrives_over_any_network(change: Callable[[list[bytes]], list[bytes]]) -> None:
    world = two_hosts()
    world.hosts[HOST].records["12345/LONG"] = LONG
    resolver = resolver_of(world)
    resolver.resolve("12345/x")
    world.change_packets = change
    assert resolver.resolve("12345/long", certified=False).values == LONG
    assert len(world.hosts[HOST].exchanges) == 2


def test_lost_datagrams_are_asked_for_again_and_then_the_stream_is_used() -> None:
    world = two_hosts()
    world.hosts[HOST].records["12345/LONG"] = LONG
    resolver = resolver_of(world)
    resolver.resolve("12345/x")
    losses = [slice(1, None), slice(0, 5), slice(None)]  # the first packet, the last ones, none
    world.change_packets = lambda packets: packets[losses.pop(0)]
    assert resolver.resolve("12345/long").values == LONG
    world.change_packets = lambda packets: packets[1:]
    resolver.core.answers.clear()
    trace = resolver.resolve("12345/long", trace=True).trace
    assert [step.outcome for step in trace] == ["timed out"] * 3 + ["SUCCESS"]
    assert trace[-1].address.startswith("tcp://")


# Certified answers


def test_certified_answers_are_verified_up_to_the_root() -> None:
    world = two_hosts()
    result = resolver_of(world).resolve("12345/x", certified=True, trace=True)
    assert result.is_certified
    assert [step.is_certified for step in result.trace if step.action == "ask"] == [True, True]


@pytest.mark.parametrize("host", [ROOT_HOST, HOST])
def test_an_answer_with_a_wrong_signature_is_refused(host: str) -> None:
    world = two_hosts()
    world.hosts[host].key = DSA_KEY
    with pytest.raises(ProtocolError, match="the response is not signed by the server") as caught:
        resolver_of(world).resolve("12345/x", certified=True)
    assert caught.value.problem_type == "invalid-response"
    assert resolver_of(world).resolve("12345/x").target  # which is not verified


def test_a_missing_handle_is_certified_too() -> None:
    world = two_hosts()
    with pytest.raises(NotFound):
        resolver_of(world).resolve("12345/y", certified=True)
    world.hosts[HOST].key = SERVER_KEY
    with pytest.raises(ProtocolError):
        resolver_of(world).resolve("12345/y", certified=True)


def test_a_site_with_a_wrong_signature_is_replaced_by_another_one() -> None:
    world = two_hosts()
    world.hosts[HOST].key = SERVER_KEY
    world.hosts[OTHER_HOST] = Host({"12345/X": (URL,)})
    world.hosts[ROOT_HOST].records["0.NA/12345"] = (SERVICE, site_value(make_site(OTHER_HOST), 2))
    for _ in range(5):
        assert resolver_of(world).resolve("12345/x", certified=True).is_certified


def test_a_server_without_a_key_cannot_certify() -> None:
    site = make_site(HOST)
    world = two_hosts(site=replace(site, servers=(replace(site.servers[0], public_key=b"?"),)))
    with pytest.raises(ProtocolError, match="requires the server's public key"):
        resolver_of(world).resolve("12345/x", certified=True)


def test_an_answer_about_another_handle_is_refused() -> None:
    world = two_hosts()
    world.hosts[HOST].records["12345/X"] = (ResponseCode.SUCCESS, ResolutionResult(b"12345/other", (URL,)))
    with pytest.raises(ProtocolError, match="about another handle"):
        resolver_of(world).resolve("12345/x")


def test_an_answer_of_the_cache_is_certified_only_if_it_was_verified() -> None:
    world = two_hosts()
    resolver = resolver_of(world)
    resolver.resolve("12345/x")
    assert resolver.resolve("12345/x", certified=True).is_certified
    assert world.hosts[ROOT_HOST].asked == ["0.NA/12345"] * 2
    assert world.hosts[HOST].asked == ["12345/x"] * 2
    resolver.core.answers.drop(("12345/x", ((), ()), False))
    assert resolver.resolve("12345/x").is_certified
    assert world.hosts[HOST].asked == ["12345/x"] * 2


# Cache


def test_a_cached_record_serves_selections_until_it_expires() -> None:
    world = two_hosts()
    world.hosts[HOST].records["12345/X"] = (with_ttl(URL, 100), Value.text(2, "DESC", "a thing"))
    resolver = resolver_of(world)
    resolver.resolve("12345/x")
    assert resolver.resolve("12345/x", ("DESC",), trace=True).trace[0].action == "cache"
    assert world.hosts[HOST].asked == ["12345/x"]
    world.now += 101
    resolver.resolve("12345/x", ("DESC",))
    resolver.resolve("12345/x", ("URL",))
    resolver.resolve("12345/x", ("URL",))
    resolver.resolve("12345/x", use_cache=False)
    assert world.hosts[HOST].asked == ["12345/x"] * 4


def test_a_missing_handle_or_prefix_is_remembered_for_a_minute() -> None:
    world = two_hosts()
    resolver = resolver_of(world)
    for _ in range(3):
        for handle in ("12345/y", "999/x"):
            with pytest.raises(NotFound):
                resolver.resolve(handle)
    assert world.hosts[HOST].asked == ["12345/y"]
    assert world.hosts[ROOT_HOST].asked == ["0.NA/12345", "0.NA/999"]
    world.now += 61
    world.hosts[HOST].records["12345/Y"] = (URL,)
    assert resolver.resolve("12345/y").target


def test_a_prefix_that_a_mirror_of_the_root_does_not_know_is_looked_for_at_a_primary() -> None:
    world = two_hosts()
    mirror = Host({}, SERVER_KEY, is_primary=False)
    world.hosts["192.0.2.9"] = mirror
    root = Root((make_site("192.0.2.9", key=SERVER_KEY, primary=False), make_site(ROOT_HOST, key=SERVER_KEY)))
    resolver = resolver_of(world, root)
    resolver.core.times.record(ROOT_HOST, 5.0, world.now)
    assert resolver.resolve("12345/x").target
    assert mirror.asked == ["0.NA/12345"]


@pytest.mark.parametrize("primary", [True, False], ids=["primary root", "mirror"])
@pytest.mark.parametrize("through", ["0.NA/12345", "0.NA/SERVICE"])
def test_a_moved_prefix_is_looked_up_again(through: str, *, primary: bool) -> None:
    """Neither the prefix handle nor the record of its service comes from the cache."""
    world = two_hosts()
    world.hosts[ROOT_HOST].records["0.NA/SERVICE"] = (SERVICE,)
    if through != "0.NA/12345":
        world.hosts[ROOT_HOST].records["0.NA/12345"] = (Value.text(1, "HS_SERV", through),)
    resolver = resolver_of(world, Root((make_site(ROOT_HOST, key=SERVER_KEY, primary=primary),)))
    resolver.resolve("12345/x")
    world.hosts[HOST].records = {"12345/Z": (ResponseCode.SERVER_NOT_RESP, Failure())}
    world.hosts[OTHER_HOST] = Host({"12345/Z": (URL,)})
    world.hosts[ROOT_HOST].records[through] = (site_value(make_site(OTHER_HOST)),)
    assert resolver.resolve("12345/z").target


def test_private_values_are_never_returned() -> None:
    world = two_hosts()
    hidden = Value(9, "NOTE", b"secret", permissions=Permission.ADMIN_READ)
    world.hosts[HOST].records["12345/X"] = (URL, hidden)
    assert resolver_of(world).resolve("12345/x").values == (URL,)


# Aliases


def alias(index: int, target: str) -> Value:
    return Value.text(index, "HS_ALIAS", target)


def test_aliases_are_followed_on_request() -> None:
    world = two_hosts()
    world.hosts[HOST].records |= {"12345/A": (alias(1, "12345/b"),), "12345/B": (alias(1, "12345/x"),)}
    resolver = resolver_of(world)
    assert resolver.resolve("12345/a").values == (alias(1, "12345/b"),)
    for types in ((), ("URL",)):
        result = resolver.resolve("12345/a", types, follow_aliases=True)
        assert (result.handle, result.aliases, result.values) == ("12345/x", ("12345/a", "12345/b"), (URL,))
    world.hosts[HOST].records["12345/D"] = (alias(1, "nonsense"),)
    with pytest.raises(ProtocolError, match="the HS_ALIAS value of 12345/d is not a handle"):
        resolver.resolve("12345/d", follow_aliases=True)
    world.hosts[HOST].records["12345/C"] = (alias(1, "12345/missing"),)
    with pytest.raises(NotFound, match="12345/missing"):
        resolver.resolve("12345/c", follow_aliases=True)


def test_a_certified_target_of_an_alias_that_is_not_certified_is_not_certified() -> None:
    world = two_hosts()
    world.hosts[HOST].records["12345/A"] = (alias(1, "12345/x"),)
    resolver = resolver_of(world)
    assert resolver.resolve("12345/x", certified=True).is_certified
    assert resolver.resolve("12345/x").is_certified, "from the cache"
    assert not resolver.resolve("12345/a", follow_aliases=True).is_certified
    assert resolver.resolve("12345/a", follow_aliases=True, certified=True).is_certified


def test_endless_aliases_are_an_error() -> None:
    world = two_hosts()
    chain = {f"12345/C{number}": (alias(1, f"12345/c{number + 1}"),) for number in range(MAX_ALIASES + 2)}
    world.hosts[HOST].records |= {"12345/A": (alias(1, "12345/a"),), **chain}
    for handle, text in (("12345/a", "leads back to itself"), ("12345/c0", f"more than {MAX_ALIASES} steps")):
        with pytest.raises(ProtocolError, match=text):
            resolver_of(world).resolve(handle, follow_aliases=True)
