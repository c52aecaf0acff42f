"""The fast path returns the bytes of the slow path for any request in any state, or leaves it to the server.

The slow path is `wire.server` with `registry.queries.resolve` over the same ledger. `reasons` lists every reason for
leaving it, as rules about the request and the records; a request must be left to the server exactly if one applies.
`make fuzz` looks further.

There is one known difference, with a test at the end of the module: if the stored policy of a namespace is invalid, the
registry refuses with RC_ERROR, while a resolver responds as if there were no policy.
"""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perseid.ledger.log.entry import State
from perseid.ledger.log.record_keys import policy_name
from perseid.ledger.views.answers_format import MAX_PLAIN_KEY
from perseid.names.handle import CaseRule, Handle, ancestor_prefixes
from perseid.records.record import Permission, TtlType, Value, ValueRef
from perseid.records.types import DELEGATION_TYPES
from perseid.registry.snapshot import StoredRecord
from perseid.server.native.resolution import MAX_LEVELS, MAX_PACKETS, ResolutionSettings, packets
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.fragments import PACKET_PAYLOAD, split
from perseid.wire.message import Envelope
from tests.conftest import EXAMPLES
from tests.server.native.resolution_states import NOW, RequestFields, StoredState, World, governed, homed, value, world

CORDRA = "0123456789ABCDEF0123456789ABCDEF"
PREFIXES = ("10", "10.1", "10.1.2", "20.5", "2000.01", "0.NA", "0.TYPE")
PROFILE_NAMES = ("free", "pilin", "exact", "cordra")
SUFFIXES = ("x", "X", "aB", "Ab", "ü-日本", CORDRA, CORDRA.lower(), "a/b", "n" * 390, "a?b", "10.1/x")

SETTINGS = {
    "usual": (ResolutionSettings(), "free"),
    "mirror, letters told apart": (
        ResolutionSettings(serial=-7, is_primary=False, default_sensitive=True),
        "exact",
    ),
    "second of three": (ResolutionSettings(serial=300, servers=3, position=1), "free"),
    "cordra": (ResolutionSettings(default_scheme="cordra"), "cordra"),
    "templates": (ResolutionSettings(templates=True), "free"),
    "by suffix": (ResolutionSettings(servers=2, position=0, hash_option=1), "free"),
}
"""What sites may be, and the profile of their prefixes without a policy."""


# Records

TEMPLATE = b'<namespace><template delimiter="@"><value type="URL" data="x"/></template></namespace>'
TYPES = ("URL", "url.US", "URL.us.x", "EMAIL", "HS_ADMIN", "ü.Ä", "", ".", *sorted(DELEGATION_TYPES), "hs_site.prefix")
contents = st.binary(max_size=30) | st.just(bytes(200)) | st.just(bytes(1_000)) | st.just(bytes(9_000))
one_value = st.builds(
    Value,
    st.just(1),
    st.sampled_from(TYPES),
    contents,
    st.just(NOW + 99),
    st.sampled_from((TtlType.RELATIVE, TtlType.RELATIVE, TtlType.ABSOLUTE, TtlType(7))),
    st.sampled_from((0x0E, 0x0E, 0x0E, 0x0C, 0x02, 0xFF, 0x04)).map(Permission),
    st.just(NOW - 5),
    st.sampled_from(((), (ValueRef(7, "10.1/x"),))),
)
template = st.builds(lambda public: value(1, "HS_NAMESPACE", TEMPLATE, public=public), st.booleans())


@st.composite
def several_values(draw: st.DrawFn) -> tuple[Value, ...]:
    values = draw(st.lists(one_value | template, max_size=5))
    indexes = sorted(
        draw(st.sets(st.integers(1, 6) | st.just(0x7FFF_FFFF), min_size=len(values), max_size=len(values)))
    )
    return tuple(
        Value(index, each.type, each.data, each.ttl, each.ttl_type, each.permissions, each.timestamp, each.references)
        for index, each in zip(indexes, values, strict=True)
    )


states = st.sampled_from((*[State.NORMAL] * 6, State.TOMBSTONE, State.RESERVED, State.UNPUBLISHED, State(5), State(99)))


HOMED = ("n", "n", "n", "n", "b", "m", "nm", "")
"""How a prefix is homed: by its prefix handle, bare, by a marker, or not."""


@st.composite
def records(draw: st.DrawFn) -> list[StoredState]:
    """Prefixes homed in different ways or not at all, with or without policies, and names under them."""
    stored, exact = [], set()
    for prefix in PREFIXES:
        chosen = draw(st.sampled_from(HOMED))
        ways = (f"0.NA/{prefix}", prefix, f"0.NA/0.NA/{prefix}")
        stored += [homed(way) for letter, way in zip("nbm", ways, strict=True) if letter in chosen]
        profile = draw(st.sampled_from((None, *PROFILE_NAMES)))
        if prefix != "0.NA" and profile is not None:
            stored.append(governed(prefix, profile))
            exact |= {prefix} if profile == "exact" else set()
    some = st.tuples(st.sampled_from(PREFIXES), st.sampled_from((*SUFFIXES, *PREFIXES)))
    for prefix, suffix in draw(st.lists(some, min_size=4, max_size=12)):
        otherwise = prefix != "0.NA" and draw(st.integers(0, 9)) == 9
        is_exact = (prefix in exact) is not otherwise
        stored.append(StoredState(f"{prefix}/{suffix}", draw(several_values()), draw(states), is_exact))
    for prefix in draw(st.sets(st.sampled_from(PREFIXES))):
        stored.append(StoredState(f"0.NA/{prefix}", draw(several_values()), draw(states)))
    return list({record.key: record for record in stored}.values())


# Requests

COMMON = int(DEFAULT_FLAGS)
CLEAR = [OpFlag.RECURSIVE, OpFlag.CACHE_AUTHENTICATION, OpFlag.KEEP_CONNECTION, OpFlag.REQUEST_DIGEST]
CLEAR += [OpFlag.DO_NOT_REFER, OpFlag.AUTHORITATIVE, OpFlag.OVERWRITE, OpFlag.MINT_SUFFIX, OpFlag.CONTINUOUS]
REFUSED = [OpFlag.CERTIFY, OpFlag.ENCRYPT, 1, 0x0008_0000]
VERSIONS = [Version(2, minor) for minor in range(12)]
ODD_VERSIONS = [Version(5, 0), Version(2, 12), Version(9, 9), Version(1, 3)]
QUERIES = [*TYPES, "URL.", "url.us.", "ü.ä.", "NOTE", "H" * 200]
MADE_UP = (
    *("0.SITE/status", "0.site/x", "30/x", "10/", "/x", "", "10.1.2.3.4"),
    *("0.NA/" + "." * 40, "0.na/10..1", "0.NA/60.1"),
)


class RequestGenerator:
    """Generates random requests: most of them for a resolver, some with every reason to leave them.

    A request is built field by field.
    """

    def __init__(self, random: Random, records: list[StoredState]) -> None:
        self._random = random
        names = [record.name for record in records if not record.name.startswith("0.SITE/")]
        mixed = [f"{random.choice(PREFIXES)}/{random.choice((*SUFFIXES, *PREFIXES))}" for _ in range(len(names) + 4)]
        self._names = [*names, *names, *mixed, *PREFIXES, *MADE_UP]

    def _seldom(self) -> bool:
        return self._random.random() < 0.04

    def name(self) -> bytes:
        random = self._random
        name = random.choice(self._names)
        if name and random.random() < 0.3:
            name = random.choice((name.swapcase(), name.upper(), name + "?q=1", name + "#f", name + ".7"))
        return name.encode() + b"\xff" * self._seldom()

    def flags(self) -> int:
        random = self._random
        flags = sum(int(flag) for flag in CLEAR if random.random() < 0.3)
        flags |= OpFlag.PUBLIC_ONLY * (random.random() < 0.7)
        return flags | random.choice(REFUSED) * self._seldom()

    def request(self) -> RequestFields:
        random = self._random
        version, suggested = random.choice(VERSIONS), random.choice([*VERSIONS, Version(2, 11), None])
        if self._seldom():
            version = random.choice(ODD_VERSIONS)
        if self._seldom():
            suggested = random.choice([odd for odd in ODD_VERSIONS if odd.major < 4])
        return RequestFields(
            self.name(),
            tuple(random.choices((1, 2, 3, 4, 5, 6, 7, -1, 0x7FFF_FFFF), k=random.choice((0, 0, 1, 3)))),
            tuple(random.choices(QUERIES, k=random.choice((0, 0, 1, 3)))),
            self.flags(),
            version,
            suggested,
            random.randrange(-(1 << 31), 1 << 31),
            random.randrange(256),
            random.choice((9, -1)) if self._seldom() else 0,
            OpCode.GET_SITE_INFO if self._seldom() else OpCode.RESOLUTION,
            b"more" * self._seldom(),
            random.choice((b"", bytes(3), b"\0\0\0\1x")) if self._seldom() else bytes(4),
        )


# What is handed over


def reasons(requested: RequestFields, here: World) -> Iterator[str]:
    """Why a request is not for a resolver; the slow path's response is not used."""
    yield from reasons_of_the_message(requested)
    try:
        text = requested.name.decode()
    except UnicodeDecodeError:
        yield "not UTF-8"
        return
    prefix, slash, suffix = text.partition("/")
    if not slash:
        prefix, suffix = "0.NA", text
    if not prefix or not suffix:
        yield "no name of a record"
        return
    prefix = fold(prefix)
    if prefix == "0.SITE":
        yield "the installation's own"
        return
    if prefix == "0.NA" and ("/" in suffix or suffix.count(".") > MAX_LEVELS):
        yield "no prefix behind 0.NA"
        return
    yield from reasons_of_the_state(requested, prefix, suffix, here)


def reasons_of_the_message(requested: RequestFields) -> Iterator[str]:
    suggested = requested.suggested or Version(0, 0)
    known = [Version(2, minor) for minor in range(12)]
    if requested.version not in known or (suggested not in known and suggested != Version(0, 0)):
        yield "an unusual version"
    if requested.session_id or requested.opcode is not OpCode.RESOLUTION or requested.credential not in (b"", bytes(4)):
        yield "a session, a credential, or no resolution"
    if len(requested.to_bytes()) > 512:
        yield "more than a packet"
    if requested.flags & (OpFlag.CERTIFY | OpFlag.ENCRYPT | 0x000F_FFFF):
        yield "to be signed, encrypted, or a flag nobody knows"


def reasons_of_the_state(requested: RequestFields, prefix: str, suffix: str, here: World) -> Iterator[str]:
    is_prefix_handle = prefix == "0.NA"
    if "doesn't live here" in (refusal := refusal_of(requested.name, here)):
        return
    if refusal:
        return
    with here.registry.snapshot() as snapshot:
        policy = snapshot.policy(prefix)
        if policy.scheme == "cordra" and not is_prefix_handle and ("?" in suffix or "#" in suffix):
            yield "a query or fragment"
            return
        sensitive = policy.case is CaseRule.SENSITIVE and not is_prefix_handle
        same = [record for record in here.records_by_key.values() if fold(record.name) == fold(f"{prefix}/{suffix}")]
        if any(record.exact is not sensitive for record in same):
            yield "another case rule"
            return
        handle = Handle(prefix, suffix)
        yield from reasons_of_the_record(requested, snapshot.stored(handle), snapshot.referral(handle), here)


def reasons_of_the_record(
    requested: RequestFields, stored: StoredRecord, referral: tuple[Value, ...], here: World
) -> Iterator[str]:
    public_only = bool(requested.flags & OpFlag.PUBLIC_ONLY)
    if stored.is_public:
        if not public_only and not all(each.is_public for each in stored.values):
            yield "perhaps private"
        return
    if stored.exists:
        if stored.state not in (State.RESERVED, State.UNPUBLISHED):
            yield "an unknown state"
        elif not public_only:
            yield "perhaps somebody who may see it"
    elif referral and not requested.flags & OpFlag.DO_NOT_REFER:
        if not (requested.suggested or requested.version).at_least(10):
            yield "a referral for an old client"
        return
    if here.settings.templates or has_template(stored.requested.prefix, here):
        yield "a template"


def refusal_of(name: bytes, here: World) -> str:
    """The refusal if this server is not responsible for a name, else empty."""
    code, answer = here.slow_path(RequestFields(name).to_bytes())
    return answer[48:-4].decode() if code is ResponseCode.SERVER_NOT_RESP else ""


def fold(text: str) -> str:
    return text.encode().upper().decode()


def has_template(prefix: str, here: World) -> bool:
    names = {fold(f"0.NA/{each}") for each in (prefix, *ancestor_prefixes(prefix))}
    records = [record for record in here.records_by_key.values() if fold(record.name) in names]
    return any(each.type == "HS_NAMESPACE" for record in records for each in record.values)


# The comparison

REQUESTS = 60
"""In each state: making a state costs as much as some dozens of them."""

CLOCKS = (NOW, NOW + 0.75, 2_190_000_000, (1 << 32) - 5)
"""In our days, in 2039, and just before the 32 bits of a time run over: the expiration time does already."""


@pytest.fixture(scope="module", params=SETTINGS)
def here(request: pytest.FixtureRequest) -> Iterator[World]:
    site, profile = SETTINGS[request.param]
    with world(site, profile) as made:
        yield made


@given(stored=records(), seed=st.integers(0, 1 << 32), now=st.sampled_from(CLOCKS))
@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_request_gets_the_bytes_of_the_slow_path_or_is_left_to_it(
    here: World, stored: list[StoredState], seed: int, now: float
) -> None:
    here.store(stored)
    here.now = now
    generator = RequestGenerator(Random(seed), stored)
    for _ in range(REQUESTS):
        requested = generator.request()
        fast = here.answer(requested.to_bytes())
        compare_compiled(requested, fast, here)
        why = list(reasons(requested, here))
        if not why:
            _, slow = here.slow_path(requested.to_bytes())
            if len(slow) - 20 > MAX_PACKETS * PACKET_PAYLOAD:
                why.append("more than sixteen packets")
            else:
                assert fast == slow, requested
                assert packets(slow) == split(Envelope.from_bytes(slow), slow[20:], request=False)
        assert (fast is None) == bool(why), (why, requested)


def compare_compiled(requested: RequestFields, fast: bytes | None, here: World) -> None:
    """The compiled module returns the same, or leaves the request to Python for one of the reasons below."""
    if here.settings.servers > 1:
        return  # it does not know which server is responsible
    compiled = here.compiled_answer(requested.to_bytes())
    if compiled is None and fast is not None:
        assert list(reasons_of_the_compiled(requested, here)), requested
    else:
        assert compiled == fast, requested


def reasons_of_the_compiled(requested: RequestFields, here: World) -> Iterator[str]:
    """Why the compiled module leaves requests to Python that Python answers."""
    name = requested.name if b"/" in requested.name else b"0.NA/" + requested.name
    if len(name) > MAX_PLAIN_KEY:
        yield "a hash is the key"
    if sum(fold(record.name).encode() == name.upper() for record in here.records_by_key.values()) > 1:
        yield "names that differ in case alone"


# Where they differ


@pytest.mark.parametrize("text", [b"case = ", b'case = "insensitive"\nscheme = "free"\nnobody_knows = 1\n', b"\xff"])
def test_invalid_policy_stops_the_registry_but_no_resolver(text: bytes) -> None:
    """Such a policy allows no change. Resolution continues: a new policy never makes an existing record unreadable."""
    with world() as here:
        policy = StoredState(policy_name("10"), (Value(1, "PERSEID_POLICY", text),))
        here.store([homed("0.NA/10"), policy, StoredState("10/x", (value(1),))])
        datagram = RequestFields(b"10/x").to_bytes()
        code, _ = here.slow_path(datagram)
        assert code is ResponseCode.ERROR
        answer = here.answer(datagram)
        here.store([homed("0.NA/10"), StoredState("10/x", (value(1),))])
        assert answer == here.slow_path(datagram)[1]


def test_prefix_that_starts_with_a_dot_is_not_found() -> None:
    with world() as here:
        here.store([homed("0.NA/0.NA")])
        for name in (b".7", b"0.NA/.7", b"0.NA/.", b"0.NA/..7"):
            datagram = RequestFields(name).to_bytes()
            assert here.slow_path(datagram) == (ResponseCode.HANDLE_NOT_FOUND, here.answer(datagram))
