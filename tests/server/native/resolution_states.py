"""Shared helpers for resolution: requests built field by field, records, and the slow path."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from perseid.compiled import native
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.record_keys import homed_name, policy_name, record_key
from perseid.ledger.log.requests import Append, Appended
from perseid.names.handle import Handle
from perseid.records.partition import find_server_index
from perseid.records.record import Permission, Value
from perseid.registry.identity import Anonymous
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import ReferralError, Refused
from perseid.registry.snapshot import Rules
from perseid.server.native.decisions import refusal_text
from perseid.server.native.resolution import WRONG_SERVER, PublicResolver, ResolutionSettings
from perseid.wire import message as envelope_module
from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.framing import Frame
from perseid.wire.message import Envelope, Header, Message
from perseid.wire.requests import Resolve, encode_request
from perseid.wire.responses import Failure, Referral, ResolutionResult
from perseid.wire.server import Reply, Server, ServerSettings
from tests.registry.registries import registry_in_memory
from tests.wire.key_material import SERVER_KEY

NOW = 1_794_724_100
PUBLIC, PRIVATE = Permission(0x0E), Permission(0x0C)

SILENT = (ResponseCode.HANDLE_NOT_FOUND, ResponseCode.VALUES_NOT_FOUND)
"""Codes that deployed servers send without a text (§7.6); the registry's text is for other interfaces."""


@dataclass(frozen=True)
class RequestFields:
    """A request, field by field."""

    name: bytes
    indexes: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    flags: int = int(DEFAULT_FLAGS)
    version: Version = CURRENT_VERSION
    suggested: Version | None = CURRENT_VERSION
    """None: the peer suggests nothing."""
    request_id: int = 7
    recursion: int = 0
    session_id: int = 0
    opcode: OpCode = OpCode.RESOLUTION
    trailing: bytes = b""
    """After the lists, in the body."""
    credential: bytes = bytes(4)
    """After the body."""

    def to_bytes(self) -> bytes:
        body = encode_request(Resolve(self.name, self.indexes, self.types), self.version) + self.trailing
        header = Header(self.opcode, flags=OpFlag(self.flags), recursion=self.recursion, expires=NOW)
        envelope = Envelope(self.version, self.suggested or Version(0, 0), self.session_id, self.request_id)
        raw = bytearray(Message.build(envelope, header, body).to_bytes()[:-4] + self.credential)
        raw[16:20] = (len(raw) - envelope_module.ENVELOPE_LENGTH).to_bytes(4, "big")
        return bytes(raw)


@dataclass(frozen=True)
class StoredState:
    """A record of the ledger."""

    name: str
    values: tuple[Value, ...] = ()
    state: State = State.NORMAL
    exact: bool = False

    @property
    def key(self) -> bytes:
        return record_key(self.name, exact=self.exact)


def homed(name: str) -> StoredState:
    return StoredState(homed_name(name))


def governed(prefix: str, profile: str) -> StoredState:
    """The policy of a namespace."""
    return StoredState(policy_name(prefix), (Value(1, "PERSEID_POLICY", PROFILES[profile].to_toml().encode()),))


def value(index: int, type_: str = "URL", data: bytes = b"data", *, public: bool = True) -> Value:
    return Value(index, type_, data, permissions=PUBLIC if public else PRIVATE, timestamp=NOW)


@dataclass
class World:
    """A registry whose records are replaced for each example."""

    registry: Registry
    settings: ResolutionSettings
    now: float = NOW
    records_by_key: dict[bytes, StoredState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        answers = self.registry.ledger.answers
        self.answer = PublicResolver(answers, self.settings, lambda: self.now)
        settings = ServerSettings(SERVER_KEY, self.settings.serial, self.settings.is_primary)
        self.server = Server(settings, Random(1).randbytes)

    def compiled_answer(self, datagram: bytes) -> bytes | None:
        """The response of the compiled module, which handles sites with one server."""
        answers = self.registry.ledger.answers
        finders = {"handles": answers.get, "prefixes": answers.get_prefix}
        return native.answer(self.settings, lambda store, key: finders[store](key), datagram, int(self.now))

    def store(self, records: Iterable[StoredState]) -> None:
        """Replace all records."""
        new_records = {record.key: record for record in records}
        gone = [
            StoredState(old.name, (), State.ABSENT, old.exact)
            for key, old in self.records_by_key.items()
            if key not in new_records
        ]
        new = [record for key, record in new_records.items() if self.records_by_key.get(key) != record]
        self.records_by_key = new_records
        outcomes = self.registry.ledger.append(*[Append(_draft(record)) for record in (*gone, *new)])
        assert all(isinstance(outcome, Appended) for outcome in outcomes)

    def slow_path(self, datagram: bytes) -> tuple[ResponseCode | None, bytes]:
        """The response of the server and the registry, and its code; None for early responses."""
        frame = Frame(Envelope.from_bytes(datagram), datagram[envelope_module.ENVELOPE_LENGTH :])
        received = self.server.receive(frame, self.now)
        if isinstance(received, Reply):
            return None, received.to_stream()
        assert not hasattr(received, "pending")
        body = received.body
        assert isinstance(body, Resolve)
        flags = received.flags
        code: ResponseCode
        content: ResolutionResult | Referral | Failure
        try:
            code, content = ResponseCode.SUCCESS, ResolutionResult(body.handle, self._resolve(body, flags))
        except ReferralError as referred:
            code, content = referred.code, Referral(b"", referred.values)
        except Refused as refused:
            code, content = refused.code, Failure.of("" if refused.code in SILENT else refusal_text(refused))
        return code, self.server.respond(received, code, content, self.now).to_stream()

    def _resolve(self, body: Resolve, flags: OpFlag) -> tuple[Value, ...]:
        name = body.handle if b"/" in body.handle else b"0.NA/" + body.handle
        settings = self.settings
        if find_server_index(name, settings.hash_option, settings.servers) != settings.position:
            raise Refused(ResponseCode.SERVER_NOT_RESP, WRONG_SERVER)
        handle = Handle.for_lookup(name)
        if handle is None:
            raise Refused(ResponseCode.HANDLE_NOT_FOUND, "no record can be kept under that name")
        query = Query(
            handle,
            body.types,
            body.indexes,
            public_only=OpFlag.PUBLIC_ONLY in flags,
            refer=OpFlag.DO_NOT_REFER not in flags,
        )
        return self.registry.resolve(query, Anonymous()).values


def _draft(record: StoredState) -> Draft:
    action = Action.DELETE if record.state is State.ABSENT else Action.UPDATE
    return Draft(action, record.state, record.name, "test", "local:test", "", record.values, record.exact)


@contextmanager
def world(settings: ResolutionSettings | None = None, profile: str = "free") -> Iterator[World]:
    """An empty registry, for a site with these settings and prefixes with this default profile."""
    settings = settings or ResolutionSettings()
    with registry_in_memory(rules=Rules(default_policy=PROFILES[profile])) as registry:
        assert registry.ledger.answers.catch_up(registry.ledger.log.open_reader)
        made = World(registry, settings)
        made.records_by_key = {homed("0.NA/0.NA").key: homed("0.NA/0.NA")}
        yield made
