"""Operation codes, response codes, flags, protocol versions, and protocol errors. Unknown codes are preserved."""

from enum import IntFlag
from typing import Final, NamedTuple, Self, cast

from perseid.records.encoding import OpenEnum

MAX_TIMEOUT: Final = 86_400
"""Maximum idle timeout of a session in seconds."""


class OpCode(OpenEnum):
    """The operation of a request."""

    RESERVED = 0
    RESOLUTION = 1
    GET_SITE_INFO = 2
    CREATE_HANDLE = 100
    DELETE_HANDLE = 101
    ADD_VALUE = 102
    REMOVE_VALUE = 103
    MODIFY_VALUE = 104
    LIST_HANDLES = 105
    RESPONSE_TO_CHALLENGE = 200
    VERIFY_CHALLENGE = 201
    HOME_NA = 300
    UNHOME_NA = 301
    LIST_HOMED_NAS = 302
    SESSION_SETUP = 400
    SESSION_TERMINATE = 401
    SESSION_EXCHANGEKEY = 402
    GET_NEXT_TXN_ID = 1000
    RETRIEVE_TXN_LOG = 1001
    DUMP_HANDLES = 1002
    BACKUP_SERVER = 1003


class ResponseCode(OpenEnum):
    """The result of a request."""

    RESERVED = 0
    """Marks a request."""
    SUCCESS = 1
    ERROR = 2
    """A failure of this site; clients try another one."""
    SERVER_TOO_BUSY = 3
    PROTOCOL_ERROR = 4
    OPERATION_NOT_SUPPORTED = 5
    RECURSION_COUNT_TOO_HIGH = 6
    SERVER_BACKUP = 7
    HANDLE_NOT_FOUND = 100
    HANDLE_ALREADY_EXISTS = 101
    INVALID_HANDLE = 102
    VALUES_NOT_FOUND = 200
    VALUE_ALREADY_EXISTS = 201
    INVALID_VALUE = 202
    OUT_OF_DATE_SITE_INFO = 300
    SERVER_NOT_RESP = 301
    SERVICE_REFERRAL = 302
    PREFIX_REFERRAL = 303
    INVALID_ADMIN = 400
    INSUFFICIENT_PERMISSIONS = 401
    AUTHENTICATION_NEEDED = 402
    AUTHENTICATION_FAILED = 403
    INVALID_CREDENTIAL = 404
    AUTHEN_TIMEOUT = 405
    AUTHEN_ERROR = 406
    SESSION_TIMEOUT = 500
    SESSION_FAILED = 501
    INVALID_SESSION_KEY = 502
    NEED_RSAKEY_FOR_SESSIONEXCHANGE = 503
    INVALID_SESSIONSETUP_REQUEST = 504
    SESSION_MESSAGE_REJECTED = 505


_KNOWN_FLAGS = 0xFFF0_0000


class OpFlag(IntFlag):
    """Flags in the header of a message; unknown bits are preserved."""

    AUTHORITATIVE = 0x8000_0000
    """AT: ask a primary site; the response is from a primary site."""
    CERTIFY = 0x4000_0000
    """CT: sign the response."""
    ENCRYPT = 0x2000_0000
    """ENC: encrypt the response under the session."""
    RECURSIVE = 0x1000_0000
    """REC: the server may ask other servers."""
    CACHE_AUTHENTICATION = 0x0800_0000
    """CA: a cache should sign with its own key."""
    CONTINUOUS = 0x0400_0000
    """CN: another response message follows."""
    KEEP_CONNECTION = 0x0200_0000
    """KC: keep the connection open."""
    PUBLIC_ONLY = 0x0100_0000
    """PO: only publicly readable values, no challenge."""
    REQUEST_DIGEST = 0x0080_0000
    """RD: the response begins with a digest of the request."""
    OVERWRITE = 0x0040_0000
    """OW: replace existing records or values."""
    MINT_SUFFIX = 0x0020_0000
    """MN: the server mints the suffix."""
    DO_NOT_REFER = 0x0010_0000
    """DNR: no prefix referral."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or value < 0 or not value & ~_KNOWN_FLAGS:
            return cast("Self | None", super()._missing_(value))
        # IntFlag caches every combination permanently, and a peer can send all of them: cache known flags only.
        member = int.__new__(cls, value)
        member._name_ = f"{cls.__name__}_{value:08X}"
        member._value_ = value
        return member


DEFAULT_FLAGS: Final = OpFlag.RECURSIVE | OpFlag.CACHE_AUTHENTICATION | OpFlag.PUBLIC_ONLY
"""The flags that deployed clients set on every request."""


_CERTIFIED = OpFlag.CERTIFY
_DIGESTED = OpFlag.CERTIFY | OpFlag.REQUEST_DIGEST
_EXTRA_FLAGS = {
    OpCode.SESSION_SETUP: _DIGESTED,
    OpCode.SESSION_EXCHANGEKEY: _DIGESTED,
    OpCode.VERIFY_CHALLENGE: _DIGESTED,
    OpCode.RETRIEVE_TXN_LOG: _CERTIFIED,
    OpCode.DUMP_HANDLES: _CERTIFIED,
}


def default_flags(opcode: OpCode) -> OpFlag:
    """The flags that deployed clients set on a request of this kind."""
    return DEFAULT_FLAGS | _EXTRA_FLAGS.get(opcode, OpFlag(0))


class Version(NamedTuple):
    """A protocol version. Compare with `at_least`: 5.x is a very old client and means 2.0."""

    major: int
    minor: int

    def at_least(self, minor: int) -> bool:
        """Whether this is version 2.`minor` or later."""
        return self.major != 5 and (self.major, self.minor) >= (2, minor)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `2.11`."""
        major, _, minor = text.partition(".")
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


CURRENT_VERSION: Final = Version(2, 11)
"""The newest version, which we support."""

ASSUMED_VERSION: Final = Version(2, 3)
"""The version for a peer whose version is unknown."""

_OLDEST_VERSION = Version(2, 0)


def common_version(suggested: Version, own: Version = CURRENT_VERSION) -> Version:
    """The lower of the peer's suggested version and our own."""
    if not suggested.at_least(0):
        return _OLDEST_VERSION
    return min(suggested, own)


_OLD_CODES = {ResponseCode.SERVER_BACKUP: 303, ResponseCode.INVALID_VALUE: 201}


def response_code_to_wire(code: ResponseCode, version: Version) -> int:
    """The number of a code in a version: two codes had other numbers before 2.5."""
    return code if version.at_least(5) else _OLD_CODES.get(code, code)


def response_code_from_wire(number: int, version: Version) -> ResponseCode:
    """The code of a number in a version. 201 is not mapped: both meanings are similar."""
    if number == 303 and not version.at_least(5):
        return ResponseCode.SERVER_BACKUP
    return ResponseCode(number)


class ProtocolError(Exception):
    """Base class of both errors; never raised itself."""

    def __init__(self, message: str, code: ResponseCode) -> None:
        if type(self) is ProtocolError:
            raise TypeError("raise RemoteProtocolError or LocalProtocolError instead")
        super().__init__(message)
        self.message = message
        """Text for people, without secrets."""
        self.code = code
        """The response code that a server returns."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol."""

    def __init__(self, message: str, code: ResponseCode = ResponseCode.PROTOCOL_ERROR) -> None:
        super().__init__(message, code)


class LocalProtocolError(ProtocolError):
    """The calling program requested something that the protocol does not support."""

    def __init__(self, message: str, code: ResponseCode = ResponseCode.ERROR) -> None:
        super().__init__(message, code)
