"""Long and many messages over the network: several packets, maximum length, one connection."""

import os
import random
import select
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.ledger.log.record_keys import record_key
from perseid.records.admin import Admin, ValueList
from perseid.records.record import Value, ValueRef
from perseid.records.site import Interface, Purpose, Site, Transport
from perseid.server.state.runtime import WRITER_LINK
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.fragments import MAX_PACKET, packet_count, split
from perseid.wire.framing import Frame
from perseid.wire.message import ENVELOPE_LENGTH, MAX_MESSAGE, UNKNOWN_REQUEST_ID, Envelope
from perseid.wire.requests import HandleRequest, RemoveValues, RequestBody, Resolve, ValuesRequest
from perseid.wire.responses import ResolutionResult
from perseid.wire.server import NOT_UNDERSTOOD_TEXT
from tests.server.live_servers import (
    ATTEMPTS,
    FOREIGN,
    PATIENCE,
    STRANGER,
    client_of,
    entries,
    eventually,
    indexes,
    live_installation,
    over_udp,
    reading_of,
)
from tests.server.native.native_client import NativeClient, Serving, Via, serving
from tests.server.native.native_servers import ADMIN, BY_ADMINS, HIDDEN, PREFIX, STD, text_of
from tests.wire.key_material import RSA_KEY, SECRET

URL = Value.text(1, "URL", "https://example.org/new")
_DONE = ResponseCode.SUCCESS

WATCH = '''"""Notes whom a process wants to reach."""

import os
import sys

_events = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
_file = os.open(os.environ["PYTHON_REACHED_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _hook(event, arguments):
    if event in _events:
        os.write(_file, f"{event} {arguments[1:]!r}\\n".encode())


os.write(_file, b"watched\\n")
sys.addaudithook(_hook)
'''
"""A `sitecustomize`, which Python runs before any program."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return live_installation(tmp_path_factory.mktemp("live-transport"))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which outgoing connections of the server are recorded."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(directory: Path, watched: Path) -> Iterator[Serving]:
    paths = os.pathsep.join(filter(None, [str(watched), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": paths, "PYTHON_REACHED_OUT": str(watched / "log")}
    with serving(directory, **environment) as running:
        yield running


# Several packets


def test_response_of_several_packets_is_complete(server: Serving) -> None:
    with client_of(server, Via.UDP) as client:
        (frame,) = client.exchange(client.request(OpCode.RESOLUTION, Resolve(f"{PREFIX}/vec-big".encode())))
        assert packet_count(frame.envelope.length) == 3
        found = client.resolve(f"{PREFIX}/vec-big", types=("DATA",)).body
    assert isinstance(found, ResolutionResult)
    assert found.values[0].data == bytes(octet % 256 for octet in range(1_200))


def test_request_of_several_packets_is_reassembled(server: Serving) -> None:
    data = bytes(range(256)) * 6
    with client_of(server, Via.UDP, "secret") as client:
        made = client.create(f"{PREFIX}/long-request", (Value(1, "DATA", data),))
        assert made.code is ResponseCode.SUCCESS
        found = client.resolve(f"{PREFIX}/long-request").body
    assert isinstance(found, ResolutionResult)
    assert found.values[0].data == data


def test_what_cannot_be_parsed_is_in_the_log(server: Serving) -> None:
    """Clients are told so, or what is wrong."""
    with client_of(server, Via.UDP) as client:
        request = client.client.pack(client.request(OpCode.RESOLUTION, Resolve(STD.encode())), None)
    raw = request.envelope.to_bytes() + request.payload

    def is_logged(line: str) -> bool:
        return line in server.errors

    for datagram, text, line in (
        (raw + bytes(600), b"the datagram has more than 512 bytes", "datagram of more than 512 bytes, from 127.0.0.1"),
        (raw[:-5], NOT_UNDERSTOOD_TEXT.encode(), "invalid message, from 127.0.0.1 over UDP"),
    ):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sending.settimeout(PATIENCE)
            sending.sendto(datagram, server.native)
            assert text in sending.recv(600)
        eventually(partial(is_logged, line), "a line in the log")


@settings(max_examples=15)
@given(st.randoms(use_true_random=False))
def test_packets_may_arrive_in_any_order_and_twice(server: Serving, chance: random.Random) -> None:
    """Clients are identified by address, not port (2.3): here each packet has another port."""
    with client_of(server, Via.UDP) as client:
        many = tuple(chance.sample(range(1, 500), 300))
        request = client.request(OpCode.RESOLUTION, Resolve(STD.encode(), (1, *many)))
        frame = client.client.pack(request, None)
    packets = split(frame.envelope, frame.payload, request=True)
    assert len(packets) == 3
    sent = packets + chance.sample(packets, 2)
    chance.shuffle(sent)
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in sent]
    try:
        ready: list[socket.socket] = []
        for _ in range(ATTEMPTS):
            for one, packet in zip(sockets, sent, strict=True):
                one.sendto(packet, server.native)
            # The answer comes to the one by which the last missing packet went.
            ready, _, _ = select.select(sockets, [], [], PATIENCE / ATTEMPTS)
            if ready:
                break
        assert Envelope.from_bytes(ready[0].recv(600)).request_id == frame.envelope.request_id
    finally:
        for one in sockets:
            one.close()


def test_encrypted_message_may_have_several_packets(server: Serving) -> None:
    name = f"{PREFIX}/long-secret"
    hidden = Value(2, "DATA", bytes(range(256)) * 5, permissions=HIDDEN)
    with client_of(server, Via.UDP, "rsa") as client:
        session = client.begin_session()
        assert client.create(name, (URL, hidden, BY_ADMINS)).code is ResponseCode.SUCCESS
        request = client.request(
            OpCode.RESOLUTION, Resolve(name.encode()), flags=DEFAULT_FLAGS & ~OpFlag.PUBLIC_ONLY, session=session
        )
        (frame,) = client.exchange(request, session)
        assert frame.envelope.encrypted
        assert packet_count(frame.envelope.length) > 2
        assert hidden.data in session.open(frame.payload)
        client.end_session()


def test_too_long_datagram_is_refused(server: Serving) -> None:
    """Deployed servers truncate it at 512 bytes, and cannot read the rest."""
    with client_of(server, Via.UDP) as client:
        request = client.request(OpCode.RESOLUTION, Resolve(STD.encode(), tuple(range(1, 200))))
    raw = request.to_bytes()
    assert len(raw) > MAX_PACKET
    (answer,) = over_udp(server.native, [raw])
    assert int.from_bytes(answer[ENVELOPE_LENGTH + 4 : ENVELOPE_LENGTH + 8], "big") == ResponseCode.ERROR


# The longest messages


def test_record_of_maximum_length_is_written_and_read(server: Serving) -> None:
    name = f"{PREFIX}/longest".encode()
    with client_of(server, Via.TCP, "rsa") as client:

        def values(size: int) -> tuple[Value, ...]:
            return (Value(1, "DATA", bytes(200_000)), Value(2, "DATA", bytes(size)), BY_ADMINS)

        bare = client.request(OpCode.CREATE_HANDLE, ValuesRequest(name, values(0))).envelope.length
        longest = values(MAX_MESSAGE - bare)
        assert client.request(OpCode.CREATE_HANDLE, ValuesRequest(name, longest)).envelope.length == MAX_MESSAGE
        assert client.create(name, longest).code is ResponseCode.SUCCESS
        # The answer has the form of the request, so it is as long.
        answer = client.resolve(name)
        assert isinstance(answer.body, ResolutionResult)
        assert [len(value.data) for value in answer.body.values[:2]] == [200_000, MAX_MESSAGE - bare]
        assert answer.message.envelope.length == MAX_MESSAGE
        too_long = client.resolve(name, flags=DEFAULT_FLAGS | OpFlag.CERTIFY)
        assert too_long.code is ResponseCode.ERROR
        assert "too long for a message" in text_of(too_long), "there is no room for a signature"
        assert too_long.is_certified
        client.begin_session()
        assert client.remove(name, 2).code is ResponseCode.SUCCESS
        assert indexes(client.resolve(name)) == [1, 100]
    with NativeClient(server.native, Via.UDP, timeout=PATIENCE, attempts=1) as client:
        for _ in range(4):  # a short answer each time, or clients would wait
            assert client.resolve(name).code is ResponseCode.ERROR, "a forged address must not draw that"


@pytest.mark.parametrize("length", [MAX_MESSAGE + 1, 0x7FFF_FFFF, -1, -(1 << 31)])
def test_too_long_message_is_refused(server: Serving, length: int) -> None:
    raw = Envelope(request_id=7, length=length).to_bytes()
    with socket.create_connection(server.native, PATIENCE) as stream:
        stream.sendall(raw)
        answer = b"".join(iter(lambda: stream.recv(65_536), b""))
    envelope = Envelope.from_bytes(answer)
    assert envelope.request_id == UNKNOWN_REQUEST_ID
    assert int.from_bytes(answer[ENVELOPE_LENGTH + 4 : ENVELOPE_LENGTH + 8], "big") == ResponseCode.ERROR


# One connection


def test_kept_connection_serves_a_whole_conversation(server: Serving) -> None:
    name = f"{PREFIX}/kept"
    with client_of(server, Via.KEPT, "rsa") as client:
        assert client.create(name, (URL, BY_ADMINS)).code is ResponseCode.SUCCESS
        client.begin_session()
        for index in range(2, 8):
            assert client.add(name, Value.text(index, "URL", "https://example.org/")).code is ResponseCode.SUCCESS
            assert indexes(client.resolve(name)) == [*range(1, index + 1), 100]
            assert client.resolve(f"{PREFIX}/absent").code is ResponseCode.HANDLE_NOT_FOUND
        assert len(client.list_handles(ADMIN)) > 3
        assert client.delete(name).code is ResponseCode.SUCCESS
        assert client.end_session() is not None
        assert client.connections == 1
    with client_of(server, Via.TCP, "rsa") as client:
        assert client.resolve(STD).code is ResponseCode.SUCCESS
        assert client.create(f"{PREFIX}/not-kept", (URL,)).code is ResponseCode.SUCCESS
        assert client.connections == 3, "whoever does not ask for it gets one answer, as from deployed servers"


@settings(max_examples=15)
@given(st.data())
def test_split_requests_on_a_connection_are_answered_in_order(server: Serving, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([STD, f"{PREFIX}/vec-big", f"{PREFIX}/absent", ADMIN]), min_size=1))
    with client_of(server, Via.KEPT) as client:
        kinds = [data.draw(st.sampled_from([OpCode.RESOLUTION, OpCode.GET_SITE_INFO])) for _ in names]
        requests = [
            client.request(kind, Resolve(name.encode()) if kind is OpCode.RESOLUTION else HandleRequest())
            for name, kind in zip(names, kinds, strict=True)
        ]
    stream = b"".join(request.to_bytes() for request in requests)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=5)))
    with socket.create_connection(server.native, PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            connection.sendall(stream[start:end])
        if data.draw(st.booleans()):
            connection.shutdown(socket.SHUT_WR)  # what was asked before is answered all the same
        for request in requests:
            frame = _frame(connection)
            assert frame.envelope.request_id == request.envelope.request_id
            assert frame.payload[:4] == request.raw[:4]


def test_changes_that_are_sent_at_once_are_made_together_and_in_order(server: Serving, directory: Path) -> None:
    """A later change may depend on an earlier one: on the same record, or on a group that it changes."""
    names = [f"{PREFIX}/at-once-{number:02d}" for number in range(20)]
    team, other = f"{PREFIX}/at-once-team", f"{PREFIX}/at-once-other"
    by_team = Value(100, "HS_ADMIN", Admin(ValueRef(200, team)).to_bytes())
    note, moved = Value.text(2, "NOTE", "later"), Value.text(1, "URL", "https://example.org/moved")
    with client_of(server, Via.KEPT, "rsa") as client:
        client.begin_session()
        members = [Value(200, "HS_VLIST", ValueList(refs).to_bytes()) for refs in ((), (ValueRef(300, ADMIN),))]
        assert client.create(team, (members[0], BY_ADMINS)).code is ResponseCode.SUCCESS
        assert client.create(other, (URL, by_team)).code is ResponseCode.SUCCESS
        assert client.modify(other, moved).code is ResponseCode.INVALID_ADMIN
        steps: list[tuple[OpCode, RequestBody, ResponseCode]] = [
            *((OpCode.CREATE_HANDLE, ValuesRequest(name.encode(), (URL, BY_ADMINS)), _DONE) for name in names),
            (OpCode.CREATE_HANDLE, ValuesRequest(names[0].encode(), (URL,)), ResponseCode.HANDLE_ALREADY_EXISTS),
            (OpCode.MODIFY_VALUE, ValuesRequest(team.encode(), (members[1],)), _DONE),
            (OpCode.MODIFY_VALUE, ValuesRequest(other.encode(), (moved,)), _DONE),
            (OpCode.ADD_VALUE, ValuesRequest(other.upper().encode(), (note,)), _DONE),
            (OpCode.DELETE_HANDLE, HandleRequest(names[1].encode()), _DONE),
            (OpCode.RESOLUTION, Resolve(names[1].encode()), ResponseCode.HANDLE_NOT_FOUND),
        ]
        requests = [client.request(opcode, body, session=client.session) for opcode, body, _ in steps]
        frames = [client.client.pack(request, client.session) for request in requests]
    with socket.create_connection(server.native, PATIENCE) as connection:
        connection.sendall(b"".join(frame.envelope.to_bytes() + frame.payload for frame in frames))
        answers = [_frame(connection) for _ in steps]
    assert [each.envelope.request_id for each in answers] == [each.envelope.request_id for each in requests]
    codes = [ResponseCode(int.from_bytes(each.payload[4:8], "big")) for each in answers]
    assert codes == [code for _, _, code in steps]
    with reading_of(directory) as found:
        commits = {entry.at for name in names if (entry := found.record(record_key(name))) is not None}
        assert len(commits) < len(names), "one commit takes several of them"
        changed = found.record(record_key(other))
    assert changed is not None
    assert [value.data for value in changed.record()][:2] == [moved.data, note.data]


def _frame(connection: socket.socket) -> Frame:
    envelope = Envelope.from_bytes(connection.recv(ENVELOPE_LENGTH, socket.MSG_WAITALL))
    return Frame(envelope, connection.recv(envelope.length, socket.MSG_WAITALL))


# Interfaces


def test_interface_accepts_what_the_site_record_says(tmp_path: Path) -> None:
    directory = live_installation(tmp_path)
    with serving(directory) as own:
        with client_of(own) as client:
            site = client.site()
        port = own.native[1]

        def offer(serial: int, udp: Purpose, tcp: Purpose) -> Site:
            interfaces = (Interface(udp, Transport.UDP, port), Interface(tcp, Transport.TCP, port))
            changed = replace(site, serial=serial, servers=(replace(site.servers[0], interfaces=interfaces),))
            for path in directory.glob("siteinfo.*"):
                path.unlink()
            (directory / "siteinfo.bin").write_bytes(changed.to_bytes())
            own.process.send_signal(signal.SIGHUP)
            return changed

        changed = offer(site.serial + 1, Purpose.QUERY, Purpose.ADMIN)
        with client_of(own, Via.TCP, "secret") as tcp, client_of(own, Via.UDP, "secret") as udp:
            eventually(lambda: tcp.site() == changed, "the new site information")
            name = f"{PREFIX}/by-its-interface".encode()
            body = ValuesRequest(name, (URL,))
            assert _early_code(udp, OpCode.CREATE_HANDLE, body) is ResponseCode.PROTOCOL_ERROR
            assert udp.site() == changed
            assert udp.resolve(STD).code is ResponseCode.SUCCESS
            assert tcp.create(name, (URL,)).code is ResponseCode.SUCCESS
            assert _early_code(tcp, OpCode.RESOLUTION, Resolve(name)) is ResponseCode.PROTOCOL_ERROR
            changed = offer(site.serial + 2, Purpose.ADMIN, Purpose.QUERY)
            eventually(lambda: tcp.site() == changed, "the new site information")
            assert _early_code(tcp, OpCode.CREATE_HANDLE, body) is ResponseCode.PROTOCOL_ERROR
            assert tcp.resolve(STD).code is ResponseCode.SUCCESS
            # Resolvers are exchanged a moment later; until then the old ones answer.
            eventually(
                lambda: _early_code(udp, OpCode.RESOLUTION, Resolve(name)) is ResponseCode.PROTOCOL_ERROR,
                "resolution kept out of UDP",
            )
            assert udp.create(name + b"-over-udp", (URL,)).code is ResponseCode.SUCCESS


def _early_code(client: NativeClient, opcode: OpCode, body: RequestBody) -> ResponseCode:
    (frame,) = client.exchange(client.request(opcode, body))
    assert frame.payload[:4] == opcode.to_bytes(4, "big")
    return ResponseCode(int.from_bytes(frame.payload[4:8], "big"))


# Nobody else is asked


@pytest.mark.parametrize("via", [Via.UDP, Via.TCP], ids=lambda via: via.value)
def test_foreign_identity_is_refused_without_outgoing_connections(
    server: Serving, directory: Path, watched: Path, via: Via
) -> None:
    before = entries(directory)
    with client_of(server, via) as client:
        for proof in (RSA_KEY, SECRET):
            client.act_as(STRANGER, proof)
            answer = client.do(OpCode.REMOVE_VALUE, RemoveValues(FOREIGN.encode(), (1,)))
            assert answer.code is ResponseCode.AUTHENTICATION_FAILED
            assert "is not hosted here" in text_of(answer)
    assert entries(directory) == before
    log = (watched / "log").read_text().splitlines()
    assert log.count("watched") >= 2, "the supervisor and a worker"
    writer = f"{(str((directory / WRITER_LINK).readlink()),)}"
    assert {line for line in log if not line.endswith(writer)} == {"watched"}  # the Unix socket of the server
    assert _local_ports(server) <= {server.native[1], server.http[1], (server.metrics or ("", 0))[1]}


def _local_ports(server: Serving) -> set[int]:
    """The local ports of all network sockets of a server's processes."""
    inodes: set[str] = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                group = os.getpgid(int(folder.name))
                links = [str(link.readlink()) for link in (folder / "fd").iterdir()] if group == server.pid else []
            except OSError:
                continue
            inodes |= {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    ports = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
