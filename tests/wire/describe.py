"""Describe messages, as parsed by our own classes, in the format of the recorded descriptions.

Every field has an offset, so equal descriptions also have equal order and size of all parts.
Lengths and offsets come from the parsed values, never from the bytes that were parsed.
"""

from typing import Final

from perseid.records.admin import Admin, AdminPermission
from perseid.records.binary import Reader
from perseid.records.errors import InvalidData
from perseid.records.keys import DhPublicKey, PublicKey, RsaPublicKey
from perseid.records.record import Permission, TtlType, Value
from perseid.records.site import PrimaryMask, Site
from perseid.wire.codes import OpCode, OpFlag, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.message import Credential, Envelope, Header, Message, RequestDigest
from perseid.wire.requests import (
    REQUEST_DECODERS,
    ChallengeResponse,
    ExchangeKey,
    HandleRequest,
    RemoveValues,
    RequestBody,
    Resolve,
    RetrieveTransactions,
    SessionSetup,
    ValuesRequest,
    VerifyChallenge,
)
from perseid.wire.responses import (
    Challenge,
    CreationResult,
    Failure,
    HandleList,
    ResolutionResult,
    ResponseBody,
    SessionSetupResult,
    SiteInfo,
    TransactionStream,
    VerificationResult,
    decode_response,
)
from tests.wire.recorded import NOW, Field

FLAG_NAMES: Final = {
    OpFlag.AUTHORITATIVE: "AUTH",
    OpFlag.CERTIFY: "CERT",
    OpFlag.ENCRYPT: "ENCR",
    OpFlag.RECURSIVE: "RECU",
    OpFlag.CACHE_AUTHENTICATION: "CACR",
    OpFlag.CONTINUOUS: "CONT",
    OpFlag.PUBLIC_ONLY: "PUBL",
    OpFlag.REQUEST_DIGEST: "RRDG",
    OpFlag.OVERWRITE: "OVRW",
    OpFlag.MINT_SUFFIX: "MINT",
}

_MAC_CODES = "1 MD5 2 SHA-1 3 SHA-256 0x12 HMAC-SHA1 0x13 HMAC-SHA256 0x22 PBKDF2-HMAC-SHA1"
_OLD_DIGEST = "requestDigest (4-byte length, no hash type)"


class Description:
    """The fields of a message, starting at an offset."""

    def __init__(self, position: int = 0) -> None:
        self.fields: list[Field] = []
        self.position = position

    def put(self, name: str, length: int, value: int | str) -> None:
        self.fields.append(Field(self.position, length, name, value))
        self.position += length

    def counted(self, name: str, data: bytes, value: str) -> None:
        """Add a byte string after its length."""
        self.put(f"{name}.length", 4, len(data))
        self.put(name, len(data), value)

    def hexadecimal(self, name: str, data: bytes) -> None:
        self.counted(name, data, data.hex())

    def text(self, name: str, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.counted(name, data, data.decode())

    def data(self, name: str, data: bytes) -> None:
        """Add data, as text if it is printable ASCII."""
        printable = data.isascii() and data.decode("ascii").isprintable()
        self.counted(name, data, data.decode() if printable else data.hex())

    def inside(self, length: int) -> "Description":
        """A description of the last `length` bytes, which are already described as a whole."""
        return Description(self.position - length)

    def join(self, inner: "Description") -> None:
        self.fields += inner.fields

    def note(self, text: str) -> None:
        self.fields.append(Field(None, None, "NOTE", text))
        self.position = 0


def describe_packets(envelopes: list[Envelope], sizes: list[int]) -> Description:
    """The envelopes of a message in several datagrams."""
    description = Description()
    for number, envelope in enumerate(envelopes):
        description.position = 0
        _envelope(description, envelope, f"packet[{number}]." if number else "")
    if len(sizes) > 1:
        text = f"{len(sizes)} packets, data sizes {sizes}; offsets below are in the reassembled message"
        description.note(f"{text} (envelopes removed)")
    return description


def describe_envelope(envelope: Envelope, position: int) -> Description:
    """The envelope of a message in one piece."""
    description = Description(position)
    _envelope(description, envelope, "")
    return description


def describe_encrypted(description: Description, frame: Frame, iv: int) -> None:
    """The visible parts of an encrypted message."""
    description.put("encrypted.iv", iv, frame.payload[:iv].hex())
    what = "encrypted.ciphertext (AES-128-CBC, PKCS#5, first 16 bytes of the session key)"
    description.put(what, len(frame.payload) - iv, "...")
    description.note("offsets below are in decrypted_hex")


def describe_message(description: Description, message: Message) -> None:
    """Everything after the envelope."""
    _header(description, message.header, len(message.body))
    start = description.position
    try:
        if message.header.is_request:
            _request(description, message)
        else:
            digest, body = decode_response(message, NOW)
            _response(description, digest, body)
    except InvalidData:
        return
    padding = len(message.body) - (description.position - start)
    if padding:
        data = message.body[len(message.body) - padding :]
        description.put("body.PADDING (counted in bodyLength)", padding, data.hex())
    _credential(description, message.credential)


def _envelope(description: Description, envelope: Envelope, prefix: str) -> None:
    put, major = description.put, envelope.suggested.major
    flags = 0x80 * envelope.compressed | 0x40 * envelope.encrypted | 0x20 * envelope.truncated | major
    shown = (
        f"compressed={envelope.compressed:d} encrypted={envelope.encrypted:d} truncated={envelope.truncated:d} "
        f"suggestMajor={major}"
    )
    put(f"{prefix}env.majorVersion", 1, envelope.version.major)
    put(f"{prefix}env.minorVersion", 1, envelope.version.minor)
    put(f"{prefix}env.flags+suggestMajor", 1, f"0x{flags:02x} ({shown})")
    put(f"{prefix}env.suggestMinor", 1, envelope.suggested.minor)
    put(f"{prefix}env.sessionId", 4, envelope.session_id)
    put(f"{prefix}env.requestId", 4, f"{envelope.request_id & 0xFFFFFFFF:#x}")
    put(f"{prefix}env.sequence (packet number)", 4, envelope.sequence)
    put(f"{prefix}env.messageLength", 4, envelope.length)


def _header(description: Description, header: Header, body_length: int) -> None:
    put, code = description.put, header.response_code
    names = "|".join(name for flag, name in FLAG_NAMES.items() if flag in header.flags)
    opcode = header.opcode.name if header.opcode in set(OpCode) else "?"
    put("hdr.opCode", 4, f"{header.opcode.value} {opcode}")
    put("hdr.responseCode", 4, f"{code.value} {code.name}" + " (request)" * (code == ResponseCode.RESERVED))
    put("hdr.opFlags", 4, f"0x{header.flags.value:08x} {names}")
    put("hdr.siteInfoSerial", 2, "65535 (-1 unknown)" if header.site_serial == -1 else str(header.site_serial))
    put("hdr.recursionCount", 1, header.recursion)
    put("hdr.reserved", 1, header.reserved)
    put("hdr.expiration (unix seconds)", 4, header.expires)
    put("hdr.bodyLength", 4, body_length)


def _credential(description: Description, credential: Credential | None) -> None:
    put = description.put
    if credential is None:
        put("credential.length", 4, 0)
        return
    put("credential.length", 4, len(credential.to_bytes()))
    put("credential.version", 1, credential.version)
    put("credential.reserved", 1, credential.reserved)
    put("credential.flags", 2, credential.options)
    description.text("credential.signerHandle", credential.signer)
    put("credential.signerIndex = session counter", 4, credential.counter)
    description.text("credential.type", credential.type)
    put("credential.signatureSectionLength", 4, 8 + len(credential.algorithm) + len(credential.signature))
    description.text("credential.digestAlg", credential.algorithm)
    description.hexadecimal("credential.signature", credential.signature)


def _request(description: Description, message: Message) -> None:
    read = REQUEST_DECODERS.get(message.header.opcode)
    if read is None:
        return
    body = read(message.body_reader(), message.version, NOW)
    match body:
        case Resolve():
            description.text("handle", body.handle)
            _indexes(description, body.indexes)
            description.put("typeCount", 4, len(body.types))
            for number, type_ in enumerate(body.types):
                description.text(f"type[{number}]", type_)
        case HandleRequest():
            description.text("handle", body.handle)
        case ValuesRequest():
            description.text("handle", body.handle)
            _values(description, body.values)
        case RemoveValues():
            description.text("handle", body.handle)
            _indexes(description, body.indexes)
        case _:
            _other_request(description, body)


def _other_request(description: Description, body: RequestBody) -> None:
    put = description.put
    match body:
        case ChallengeResponse():
            description.text("authType", body.auth_type)
            description.text("userIdHandle", body.handle)
            put("userIdIndex", 4, body.index)
            description.hexadecimal("signedResponse", body.answer)
            _proof(description, body)
        case VerifyChallenge():
            description.text("handle", body.handle)
            put("handleIndex", 4, body.index)
            description.hexadecimal("nonce", body.nonce)
            description.hexadecimal(_OLD_DIGEST, body.digest)
            description.hexadecimal("signedResponse", body.answer)
        case SessionSetup():
            _exchange_mode(description, body.mode.value)
            put("timeout", 4, body.timeout)
            description.text("identityHandle", body.handle)
            put("identityIndex", 4, body.index)
            if body.public_key:
                _public_key(description, "publicKey", body.public_key)
            if body.key_handle:
                description.text("exchangeKeyHandle", body.key_handle)
                put("exchangeKeyIndex", 4, body.key_index)
        case ExchangeKey():
            description.hexadecimal("encryptedSessionKey", body.encrypted_key)
        case RetrieveTransactions():
            put("pullOtherTransactions", 1, int(body.state is not None))
            put("lastTxnId", 8, body.last_id)
            put("lastQueryDate", 8, body.last_date)
            put("rcvrHashType", 1, body.receiver.hash_option)
            put("numServers", 4, body.receiver.servers)
            put("serverNum", 4, body.receiver.position)


def _response(description: Description, digest: RequestDigest | None, body: ResponseBody) -> None:
    put = description.put
    if digest is not None:
        put("requestDigest.hashType", 1, f"{digest.algorithm.value} (1 MD5 2 SHA-1 3 SHA-256)")
        put("requestDigest", len(digest.digest), digest.digest.hex())
    match body:
        case ResolutionResult():
            description.text("handle", body.handle)
            _values(description, body.values)
        case CreationResult():
            description.text("handle", body.handle or b"")
        case HandleList():
            put("handleCount", 4, len(body.handles))
            for number, handle in enumerate(body.handles):
                description.text(f"handle[{number}]", handle)
        case _:
            _other_response(description, body)


def _other_response(description: Description, body: ResponseBody) -> None:
    put = description.put
    match body:
        case Challenge():
            description.hexadecimal("nonce", body.nonce)
        case Failure():
            description.text("errorMessage", body.text or b"")
        case SessionSetupResult():
            _exchange_mode(description, body.mode.value)
            description.hexadecimal("data", body.data)
        case VerificationResult():
            put("isValid", 1, body.flags)
        case TransactionStream():
            put("keepAliveFlag", 1, body.flags)
        case SiteInfo():
            _site(description, body.site)


def _exchange_mode(description: Description, mode: int) -> None:
    description.put("keyExchangeMode", 2, f"{mode} (1 client-RSA 2 server-RSA 3 handle-RSA 4 DH)")


def _indexes(description: Description, indexes: tuple[int, ...]) -> None:
    description.put("indexCount", 4, len(indexes))
    for number, index in enumerate(indexes):
        description.put(f"index[{number}]", 4, index)


def _values(description: Description, values: tuple[Value, ...]) -> None:
    description.put("valueCount", 4, len(values))
    for number, value in enumerate(values):
        _value(description, f"value[{number}]", value)


def _value(description: Description, name: str, value: Value) -> None:
    put = description.put
    bits = {
        "adminRead": Permission.ADMIN_READ,
        "adminWrite": Permission.ADMIN_WRITE,
        "publicRead": Permission.PUBLIC_READ,
        "publicWrite": Permission.PUBLIC_WRITE,
    }
    permissions = " ".join(f"{bit}={flag in value.permissions:d}" for bit, flag in bits.items())
    put(f"{name}.index", 4, value.index)
    put(f"{name}.timestamp", 4, value.timestamp)
    ttl_type = {TtlType.RELATIVE: "relative", TtlType.ABSOLUTE: "absolute"}[value.ttl_type]
    put(f"{name}.ttlType", 1, f"{value.ttl_type.value} ({ttl_type})")
    put(f"{name}.ttl", 4, value.ttl)
    put(f"{name}.permissions", 1, f"{value.permissions.value:#x} ({permissions})")
    description.text(f"{name}.type", value.type)
    description.data(f"{name}.data", value.data)
    if value.type == "HS_ADMIN":
        _administrator(description, f"{name}.data(HS_ADMIN)", value.data)
    put(f"{name}.referenceCount", 4, len(value.references))
    for number, reference in enumerate(value.references):
        description.text(f"{name}.reference[{number}].handle", reference.handle)
        put(f"{name}.reference[{number}].index", 4, reference.index)


def _administrator(description: Description, name: str, data: bytes) -> None:
    admin = Admin.from_bytes(data)
    inner = description.inside(len(data))
    permissions = "|".join(bit.name or "" for bit in AdminPermission if bit in admin.permissions)
    inner.put(f"{name}.permissions", 2, f"0x{admin.permissions.value:04x} {permissions}")
    inner.text(f"{name}.adminId", admin.administrator.handle)
    inner.put(f"{name}.adminIdIndex", 4, admin.administrator.index)
    description.join(inner)


def _proof(description: Description, body: ChallengeResponse) -> None:
    """The parts of an answer, read here because our own code reads them only during the check."""
    inner = description.inside(len(body.answer))
    reader, name = Reader(body.answer), "signedResponse"
    if body.auth_type == "HS_PUBKEY":
        inner.text(f"{name}.hashAlg", reader.bytes_())
        inner.hexadecimal(f"{name}.signature", reader.bytes_())
    else:
        inner.put(f"{name}.macCode", 1, f"{reader.u8():#x} ({_MAC_CODES})")
        inner.hexadecimal(f"{name}.salt", reader.bytes_())
        inner.put(f"{name}.iterations", 4, reader.i32())
        inner.put(f"{name}.keyBits", 4, reader.i32())
        inner.hexadecimal(f"{name}.mac", reader.bytes_())
    reader.finish()
    description.join(inner)


def _public_key(description: Description, name: str, data: bytes) -> None:
    key = PublicKey.from_bytes(data)
    description.hexadecimal(name, data)
    inner = description.inside(len(data))
    inner.text(f"{name}.keyType", key.KIND)
    inner.put(f"{name}.flags", 2, "0000")
    match key:
        case RsaPublicKey():
            inner.hexadecimal(f"{name}.exponent", _integer(key.e))
            inner.hexadecimal(f"{name}.modulus", _integer(key.n))
        case DhPublicKey():
            inner.hexadecimal(f"{name}.y", _integer(key.y))
            inner.hexadecimal(f"{name}.p", _integer(key.p))
            inner.hexadecimal(f"{name}.g", _integer(key.g))
    if key.TRAILER:
        inner.put(f"{name}.TRAILING", len(key.TRAILER), key.TRAILER.hex())
    description.join(inner)


def _integer(number: int) -> bytes:
    """Two's complement: a leading zero byte if the top bit is set."""
    return number.to_bytes(number.bit_length() // 8 + 1, "big")


def _site(description: Description, data: bytes) -> None:
    site, put = Site.from_bytes(data), description.put
    primary, multiple = PrimaryMask.PRIMARY in site.primary, PrimaryMask.MULTI_PRIMARY in site.primary
    put("site.dataFormatVersion", 2, site.version)
    put("site.majorProtocolVersion", 1, site.protocol_version[0])
    put("site.minorProtocolVersion", 1, site.protocol_version[1])
    put("site.serialNumber", 2, site.serial)
    put("site.primaryMask", 1, f"{site.primary.value:#x} (primary={primary:d} multiPrimary={multiple:d})")
    put("site.hashOption", 1, f"{site.hash_option.value} (0 prefix 1 suffix 2 all)")
    description.hexadecimal("site.hashFilter", site.hash_filter)
    put("site.attributeCount", 4, len(site.attributes))
    for number, attribute in enumerate(site.attributes):
        description.text(f"site.attribute[{number}].name", attribute.name)
        description.text(f"site.attribute[{number}].value", attribute.value)
    put("site.serverCount", 4, len(site.servers))
    for number, server in enumerate(site.servers):
        name = f"site.server[{number}]"
        put(f"{name}.serverId", 4, server.server_id)
        put(f"{name}.ipAddress (IPv4 right-aligned in zeros)", 16, server.address.hex())
        _public_key(description, f"{name}.publicKey", server.public_key)
        put(f"{name}.interfaceCount", 4, len(server.interfaces))
        for place, interface in enumerate(server.interfaces):
            put(f"{name}.interface[{place}].type", 1, f"{interface.purpose.value} (1 admin 2 query 3 both)")
            transport = f"{interface.transport.value} (0 udp 1 tcp 2 http 3 https)"
            put(f"{name}.interface[{place}].protocol", 1, transport)
            put(f"{name}.interface[{place}].port", 4, interface.port)
