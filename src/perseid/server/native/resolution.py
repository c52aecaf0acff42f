"""Fast path of public resolution: one datagram in, one response from the answers view out, or None.

None means: leave the request to the service, which has the ledger, the rules, the keys, the sessions and the
limits. This module handles exactly the requests that need none of those, and leaves everything uncertain: a damaged
view, an unknown flag, a record stored under another case rule than its namespace has. Its responses are byte for byte
those of `wire.server` with `registry.queries.resolve`; tests/server/native compares them.

Requests are parsed at fixed offsets and values are copied from the view: no objects are created.

    0   envelope        44  length of the name      …   credential's length: nothing or zero
    20  header          48  name, list of indexes, list of types

A request selects values by index and type (§9.3 of the protocol). The view stores values in wire format, so they are
selected without parsing: an index is compared as its four bytes, a type as its bytes with folded case. Folding changes
ASCII letters only, so on UTF-8 this matches what `records.types.TypeQuery` matches on text; a test compares them.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.entry import State
from perseid.ledger.views.answers_format import (
    EMPTY_PREFIX_ITEM,
    PRIVATE,
    PrefixItem,
    decode_prefix,
    read_item,
    read_plain_item,
)
from perseid.names.handle import CaseRule
from perseid.records.partition import HashOption, find_server_index
from perseid.records.record import TYPE_LENGTH_OFFSET, TYPE_OFFSET
from perseid.server.observe.tally import RequestTally
from perseid.wire import message
from perseid.wire.codes import CURRENT_VERSION, OpCode, OpFlag, ResponseCode, Version, common_version
from perseid.wire.fragments import MAX_PACKET, PACKET_PAYLOAD
from perseid.wire.message import DigestAlgorithm, digest_algorithm_for

if TYPE_CHECKING:
    from perseid.records.site import Site
    from perseid.registry.installation.settings import Config

INDEX_SIZE: Final = 4

MAX_CACHED_SELECTIONS: Final = 256
"""Cached selections: clients use a handful, over and over. One needs at most some 15 KiB."""

_NUMBER = Struct(">i")
_FAMILY = b"."  # at the end of a query: the type and all below it


class FastPathMiss(Exception):
    """A request that the fast path does not handle."""


class Selection:
    """The values that a request selects, by index or by type."""

    __slots__ = ("_exact", "_families", "_indexes", "_lengths")

    def __init__(self, indexes: frozenset[bytes], types: list[bytes]) -> None:
        folded = [type_.upper() for type_ in types]
        self._indexes = indexes
        self._exact = frozenset([type_.removesuffix(_FAMILY) for type_ in folded])
        self._families = frozenset([type_ for type_ in folded if type_.endswith(_FAMILY)])
        self._lengths = frozenset([len(type_) for type_ in self._families])

    def choose(self, data: bytes, at: int, lengths: Sequence[int]) -> list[bytes]:
        """Return the matching values; all of them are contiguous from `at` on and have these lengths."""
        indexes, exact, families = self._indexes, self._exact, self._families
        chosen = []
        for length in lengths:
            end = at + length
            if data[at : at + INDEX_SIZE] in indexes:
                chosen.append(data[at:end])
            elif exact:
                start = at + TYPE_OFFSET
                type_end = start + int.from_bytes(data[at + TYPE_LENGTH_OFFSET : start], "big")
                folded = data[start : min(type_end, end)].upper()
                if folded in exact or (families and any(folded[:size] in families for size in self._lengths)):
                    chosen.append(data[at:end])
            at = end
        return chosen


@lru_cache(MAX_CACHED_SELECTIONS)
def parse_selection(lists: bytes) -> Selection | None:
    """Parse the lists of indexes and types of a request; None if they are empty, which selects everything.

    What follows them in the body is ignored, as deployed.
    """
    count, at = _read_count(lists, 0)
    after = at + INDEX_SIZE * count
    indexes = frozenset([lists[start : start + INDEX_SIZE] for start in range(at, after, INDEX_SIZE)])
    count, at = _read_count(lists, after)
    types = []
    for _ in range(count):
        length, start = _read_int(lists, at)
        at = start + length
        type_ = lists[start:at]
        if len(type_) < length or not is_utf8(type_):
            raise FastPathMiss("a type is truncated, or not UTF-8")
        types.append(type_)
    return Selection(indexes, types) if indexes or types else None


def is_utf8(data: bytes) -> bool:
    """Whether data is valid UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# Lists of a request


def _read_int(lists: bytes, at: int) -> tuple[int, int]:
    """A length or a count, and its end."""
    after = at + _NUMBER.size
    if after > len(lists):
        raise FastPathMiss("a list is truncated")
    number: int = _NUMBER.unpack_from(lists, at)[0]
    if number < 0:
        raise FastPathMiss("a length or a count is negative")
    return number, after


def _read_count(lists: bytes, at: int) -> tuple[int, int]:
    """The number of items, each of at least four bytes; never more than fit."""
    count, at = _read_int(lists, at)
    if at + INDEX_SIZE * count > len(lists):
        raise FastPathMiss("a list is shorter than its count")
    return count, at


MAX_PACKETS: Final = 16
"""Packets of the longest response over UDP. The service gets requests for longer ones: a request of 86 bytes must not
cause a response of 256 KiB, and the service limits traffic."""

MAX_LEVELS: Final = 32
"""Levels of a derived prefix that are searched: each costs a lookup, real prefixes have three or four, and a datagram
has room for hundreds of dots."""

MAX_PLAIN_PREFIXES: Final = 1_024
"""Prefixes cached as plain, with their items: more than a site serves. Spellings by clients may fill the cache at any
time; it is then cleared."""

WRONG_SERVER: Final = "Request was hashed incorrectly"
WRONG_PREFIX: Final = "That prefix doesn't live here"
"""Texts of deployed servers with RC_SERVER_NOT_RESP."""


class AnswersView(Protocol):
    """The interface of the answers view; `AnswersReader` implements it."""

    def get_pair(self, prefix: bytes, name: bytes) -> tuple[bytes | None, bytes | None]:
        """Return the item of a prefix and the items of a handle, in one state of the view."""
        ...

    def get_prefix(self, prefix: bytes) -> bytes | None:
        """Return the item of a prefix."""
        ...


@dataclass(frozen=True, slots=True)
class ResolutionSettings:
    """What responses show of the site and the settings."""

    serial: int = 1
    """Serial number of the site record."""
    is_primary: bool = True
    """Whether the site accepts changes; shown by the AT flag."""
    servers: int = 1
    """Number of servers of the site; each has a share of the names."""
    position: int = 0
    """Position of this server among them."""
    hash_option: int = HashOption.ALL
    """Which part of a name decides which server is responsible."""
    default_scheme: str = "free"
    """The suffix scheme of a prefix that is homed without a policy."""
    default_sensitive: bool = False
    """Whether such a prefix is case-sensitive."""
    templates: bool = False
    """Whether the settings have a template delimiter, so that names without a record may resolve."""

    def __post_init__(self) -> None:
        if not -0x8000 <= self.serial <= 0x7FFF:
            raise ValueError(f"invalid serial number {self.serial}: it must fit in 16 bits")
        if not 0 <= self.position < self.servers:
            raise ValueError(f"invalid position {self.position}: the site has {self.servers} servers")

    @classmethod
    def of(cls, site: "Site", position: int, config: "Config") -> Self:
        """The settings for a server of a site."""
        from perseid.registry.policy.policy import PROFILES  # noqa: PLC0415 - parsing needs no policies

        policy = PROFILES[config.default_profile]
        return cls(
            serial=site.serial,
            is_primary=site.is_primary,
            servers=len(site.servers),
            position=position,
            hash_option=int(site.hash_option),
            default_scheme=policy.scheme,
            default_sensitive=policy.case is CaseRule.SENSITIVE,
            templates=bool(config.templates.delimiter),
        )


_Outcome: TypeAlias = tuple[bytes, bytes]  # opcode and response code, body
_Digest: TypeAlias = Callable[[bytes], bytes]
_VersionRules: TypeAlias = tuple[bytes, int, _Digest | None, bool]

# Envelope: version and suggestion, session, request id, sequence, length. Header: opcode and code, flags, recursion,
# length of the body. Then, of a request, the length of the name.
_REQUEST = Struct(">4si4sii8sI2xB5xii")
_RESPONSE = Struct(">4s4x4s4xi8sIhBxIi")
_ENVELOPE = message.ENVELOPE_LENGTH
_HEADERS = message.BODY_OFFSET
_NAME_OFFSET = _HEADERS + 4
_NO_LISTS = bytes(12)  # two empty lists and no credential
_NO_CREDENTIAL = bytes(4)
_EMPTY_LISTS_LENGTH = 12  # bytes of a body besides the name, if its lists are empty
_MAX_RESPONSE = MAX_PACKETS * PACKET_PAYLOAD

_KNOWN_FLAGS = sum(OpFlag)
_UNSUPPORTED_FLAGS = int(~_KNOWN_FLAGS & 0xFFFF_FFFF | OpFlag.CERTIFY | OpFlag.ENCRYPT)
_AUTHORITATIVE = int(OpFlag.AUTHORITATIVE)
_RECURSIVE = int(OpFlag.RECURSIVE)
_PUBLIC_ONLY = int(OpFlag.PUBLIC_ONLY)
_DO_NOT_REFER = int(OpFlag.DO_NOT_REFER)
_REQUEST_DIGEST = int(OpFlag.REQUEST_DIGEST)
_ECHOED_FLAGS = int(
    OpFlag.CACHE_AUTHENTICATION
    | OpFlag.AUTHORITATIVE
    | OpFlag.PUBLIC_ONLY
    | OpFlag.DO_NOT_REFER
    | OpFlag.REQUEST_DIGEST
)

_PUBLISHED = (State.NORMAL.value, State.TOMBSTONE.value)
_HIDDEN = (State.RESERVED.value, State.UNPUBLISHED.value)

_PREFIX_OF_PREFIXES = b"0.NA"
_SITE_PREFIX = b"0.SITE"
_SYSTEM = b"0."  # both start with it
CORDRA: Final = "cordra"
"""The scheme whose names may have a query and a fragment, which are not part of the handle."""

_FAST_PATH_ERRORS = (LedgerError, OSError, IndexError, StructError, FastPathMiss)
"""Errors that leave a request to the service: no view, a damaged one, or an invalid request."""


def _result(code: ResponseCode) -> bytes:
    return OpCode.RESOLUTION.to_bytes(4, "big") + code.to_bytes(4, "big")


def _failure(code: ResponseCode, text: str = "") -> _Outcome:
    return _result(code), len(text).to_bytes(4, "big") + text.encode("ascii")


_REQUESTED = _result(ResponseCode.RESERVED)
_FOUND = _result(ResponseCode.SUCCESS)
_REFERRED = _result(ResponseCode.PREFIX_REFERRAL)
_NOT_FOUND = _failure(ResponseCode.HANDLE_NOT_FOUND)
_NO_VALUES = _failure(ResponseCode.VALUES_NOT_FOUND)
_WRONG_SERVER = _failure(ResponseCode.SERVER_NOT_RESP, WRONG_SERVER)
_WRONG_PREFIX = _failure(ResponseCode.SERVER_NOT_RESP, WRONG_PREFIX)
_NO_HANDLE = bytes(4)  # a referral could contain one


class PublicResolver:
    """Answers datagrams. Its only state is a cache of plain prefixes."""

    __slots__ = (
        "_always",
        "_clock",
        "_get_pair",
        "_get_prefix",
        "_plain",
        "_prefix",
        "_refused",
        "_settings",
        "_tally",
        "settings",
    )

    def __init__(
        self,
        view: AnswersView,
        settings: ResolutionSettings,
        clock: Callable[[], float],
        tally: RequestTally | None = None,
    ) -> None:
        self._get_pair = view.get_pair
        self._get_prefix = view.get_prefix
        self.settings = self._settings = settings
        self._clock = clock
        self._plain: dict[bytes, bytes] = {}
        self._prefix = b""  # of the last name
        self._tally = RequestTally() if tally is None else tally
        self._always = _RECURSIVE | _AUTHORITATIVE * settings.is_primary

    def __call__(self, datagram: bytes) -> bytes | None:
        """Return the response with envelope, as over TCP (`packets` splits it for UDP); or None."""
        try:
            fields = _REQUEST.unpack_from(datagram)
            head, session, request_id, sequence, length, requested, flags, hops, body_length, name_length = fields
            rules = _VERSION_RULES.get(head)
            size = len(datagram)
            if (
                rules is None
                or requested != _REQUESTED
                or flags & _UNSUPPORTED_FLAGS
                or session
                or sequence
                or length != size - _ENVELOPE
                or size > MAX_PACKET
                or name_length <= 0
            ):
                return None
            name_end = _NAME_OFFSET + name_length
            end = _HEADERS + body_length
            if datagram[name_end:] == _NO_LISTS and body_length == name_length + _EMPTY_LISTS_LENGTH:
                selected = None
            elif name_end <= end <= size and datagram[end:] in (b"", _NO_CREDENTIAL):
                selected = parse_selection(datagram[name_end:end])
            else:
                return None
            answer_head, copied, digest, allow_referrals = rules
            outcome = self._resolve(datagram[_HEADERS:name_end], selected, flags, allow_referrals)
        except _FAST_PATH_ERRORS:
            return None
        if outcome is None:
            return None
        code, body = outcome
        flags = flags & copied | self._always
        if flags & _REQUEST_DIGEST and digest is not None:
            body = digest(datagram[_ENVELOPE:end]) + body
        length = message.HEADER_LENGTH + len(body) + len(_NO_CREDENTIAL)
        if length > _MAX_RESPONSE:
            return None
        if code is _FOUND:
            try:
                self._tally.native[self._prefix] += 1
            except KeyError:
                self._tally.count_native(self._prefix)
        else:
            self._count_other(code, datagram[_NAME_OFFSET:name_end])
        expires = int(self._clock()) + message.MESSAGE_LIFETIME & 0xFFFF_FFFF
        serial = self._settings.serial
        fixed = _RESPONSE.pack(answer_head, request_id, length, code, flags, serial, hops, expires, len(body))
        return b"".join((fixed, body, _NO_CREDENTIAL))

    def _resolve(
        self, requested: bytes, selected: Selection | None, flags: int, allow_referrals: bool
    ) -> _Outcome | None:
        """Resolve a name, which is preceded by its length."""
        name, prefix, suffix, is_prefix_handle = _split(requested[4:])
        self._prefix = prefix
        site = self._settings
        if site.servers > 1 and find_server_index(name, site.hash_option, site.servers) != site.position:
            return _WRONG_SERVER
        prefix_item, items = self._get_pair(prefix, name)
        if (
            selected is None
            and items is not None
            and prefix_item is not None
            and prefix_item == self._plain.get(prefix)
        ):
            plain = read_plain_item(items, PRIVATE)
            if plain is not None:
                at, lengths = plain
                return _FOUND, b"".join((requested, len(lengths).to_bytes(4, "big"), items[at:]))
        namespace = EMPTY_PREFIX_ITEM if prefix_item is None else decode_prefix(prefix_item)
        if not namespace.hosted and not (is_prefix_handle and self._is_marked(suffix)):
            return _WRONG_PREFIX
        sensitive = False
        if prefix_item is not None and not is_prefix_handle:
            sensitive = self._is_sensitive(prefix, prefix_item, namespace, suffix)
        if items is not None:
            outcome = _read_record(requested, name, items, sensitive, selected, flags)
            if outcome is not _NOT_FOUND:
                return outcome
        elif is_prefix_handle and not flags & _DO_NOT_REFER:
            referral = self._referral(suffix)
            if referral is not None:
                return referral if allow_referrals else None
        may_apply = namespace.templates or may_inherit_template(self._get_prefix, prefix, site)
        return None if may_apply else _NOT_FOUND

    def _count_other(self, code: bytes, name: bytes) -> None:
        """Count a response without values; those of other servers' prefixes are not counted."""
        if code is _NO_VALUES[0]:
            self._tally.count_native(self._prefix)
        elif code is _NOT_FOUND[0]:
            self._tally.count_unknown(self._prefix, name if b"/" in name else b"0.NA/" + name)

    def _is_sensitive(self, prefix: bytes, prefix_item: bytes, namespace: PrefixItem, suffix: bytes) -> bool:
        """Whether the names of a prefix are case-sensitive; raises `FastPathMiss` for names with parameters."""
        site = self._settings
        sensitive = is_case_sensitive(namespace, site)
        if (site.default_scheme if namespace.case is None else namespace.scheme) == CORDRA:
            if b"?" in suffix or b"#" in suffix:
                raise FastPathMiss("the name has a query or a fragment, which is not part of the handle")
        elif not sensitive:
            self._remember(prefix, prefix_item)
        return sensitive

    def _remember(self, prefix: bytes, prefix_item: bytes) -> None:
        """Cache that names of a prefix are looked up unchanged, as long as its item is this one."""
        if len(self._plain) >= MAX_PLAIN_PREFIXES:
            self._plain.clear()
        self._plain[prefix] = prefix_item

    def _is_marked(self, prefix: bytes) -> bool:
        """Whether this server hosts the prefix handles below an ancestor of a prefix."""
        for ancestor in _ancestors(prefix):
            prefix_item = self._get_prefix(ancestor)
            if prefix_item is not None and decode_prefix(prefix_item).marker:
                return True
        return False

    def _referral(self, prefix: bytes) -> _Outcome | None:
        """The referral for a derived prefix, from its nearest ancestor that has one."""
        for ancestor in _ancestors(prefix):
            prefix_item = self._get_prefix(ancestor)
            if prefix_item is not None and (values := decode_prefix(prefix_item).referrals):
                return _REFERRED, b"".join((_NO_HANDLE, len(values).to_bytes(4, "big"), *values))
        return None


def may_inherit_template(
    get_prefix: Callable[[bytes], bytes | None], prefix: bytes, settings: ResolutionSettings
) -> bool:
    """Whether a template of the settings, or of an ancestor prefix, may apply."""
    if settings.templates:
        return True
    items = map(get_prefix, islice(_ancestors(prefix), MAX_LEVELS))
    return any(item is not None and decode_prefix(item).templates for item in items)


def is_case_sensitive(namespace: PrefixItem, site: ResolutionSettings) -> bool:
    """Whether the names of a namespace are case-sensitive; raises `FastPathMiss` if its scheme decides."""
    if namespace.case is not None:
        return namespace.sensitive
    if namespace.scheme:
        raise FastPathMiss("a policy with a scheme and no case rule")
    return site.default_sensitive


def _read_record(
    requested: bytes, name: bytes, items: bytes, sensitive: bool, selected: Selection | None, flags: int
) -> _Outcome | None:
    """The values of a record; not found if the spelling differs or it is not public."""
    item = read_item(name, items, sensitive=sensitive)
    if item is None:
        return _NOT_FOUND
    state, private, data, at, lengths = item
    if state in _HIDDEN:
        return _NOT_FOUND if flags & _PUBLIC_ONLY else None
    if state not in _PUBLISHED or (private and not flags & _PUBLIC_ONLY):
        return None
    if selected is None:
        return (_FOUND, b"".join((requested, len(lengths).to_bytes(4, "big"), data[at:]))) if lengths else _NO_VALUES
    values = selected.choose(data, at, lengths)
    return (_FOUND, b"".join((requested, len(values).to_bytes(4, "big"), *values))) if values else _NO_VALUES


def packets(answer: bytes) -> list[bytes]:
    """Split a response for UDP: packets of at most 512 bytes, each with the envelope and its number."""
    if len(answer) <= MAX_PACKET:
        return [answer]
    before, after = answer[:12], answer[16:_ENVELOPE]
    starts = range(_ENVELOPE, len(answer), PACKET_PAYLOAD)
    return [
        b"".join((before, number.to_bytes(4, "big"), after, answer[start : start + PACKET_PAYLOAD]))
        for number, start in enumerate(starts)
    ]


# Names


def _split(name: bytes) -> tuple[bytes, bytes, bytes, bool]:
    """The name to look up, its prefix and suffix, and whether it is a prefix handle."""
    prefix, slash, suffix = name.partition(b"/")
    if not slash:
        name, prefix, suffix = b"0.NA/" + name, _PREFIX_OF_PREFIXES, name
    if not prefix or not suffix or not (name.isascii() or is_utf8(name)):
        raise FastPathMiss("no record can have that name")
    if not prefix.startswith(_SYSTEM):
        return name, prefix, suffix, False
    folded = prefix.upper()
    if folded == _SITE_PREFIX:
        raise FastPathMiss("the name belongs to the installation")
    is_prefix_handle = folded == _PREFIX_OF_PREFIXES
    if is_prefix_handle and (b"/" in suffix or suffix.count(b".") > MAX_LEVELS):
        raise FastPathMiss("the view does not contain such prefixes")
    return name, prefix, suffix, is_prefix_handle


def _ancestors(prefix: bytes) -> Iterator[bytes]:
    """The prefixes that a prefix is derived from, nearest first."""
    ancestor = prefix.rpartition(b".")[0]
    while ancestor:
        yield ancestor
        ancestor = ancestor.rpartition(b".")[0]


# Versions


def _sha_256(data: bytes) -> bytes:
    return _SHA_256 + hashlib.sha256(data, usedforsecurity=False).digest()


def _sha_1(data: bytes) -> bytes:
    return _SHA_1 + hashlib.sha1(data, usedforsecurity=False).digest()


_SHA_256, _SHA_1 = bytes((DigestAlgorithm.SHA256,)), bytes((DigestAlgorithm.SHA1,))
_DIGESTS: dict[DigestAlgorithm, _Digest] = {DigestAlgorithm.SHA256: _sha_256, DigestAlgorithm.SHA1: _sha_1}
_REFERRALS_SINCE = 10  # minor version from which clients follow referrals; the service handles older ones


def _version_rules() -> Iterator[tuple[bytes, _VersionRules]]:
    """What follows from the first four bytes of an envelope; the service gets requests that match none.

    Versions 2.0 to 2.11, each suggesting one of them or nothing, without flags: not encrypted, not in several packets
    and not compressed.
    """
    versions = [Version(CURRENT_VERSION.major, minor) for minor in range(CURRENT_VERSION.minor + 1)]
    for version in versions:
        for suggested in (*versions, Version(0, 0)):
            answer = common_version(suggested if suggested.major else version)
            copied = _ECHOED_FLAGS if answer.at_least(1) else _ECHOED_FLAGS & ~_REQUEST_DIGEST
            digest = _DIGESTS.get(digest_algorithm_for(answer))
            yield (
                bytes((*version, *suggested)),
                (bytes((*answer, *CURRENT_VERSION)), copied, digest, answer.at_least(_REFERRALS_SINCE)),
            )


_VERSION_RULES: Final[dict[bytes, _VersionRules]] = dict(_version_rules())
