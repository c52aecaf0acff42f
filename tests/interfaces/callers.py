"""The same requests at every interface, on copies of one installation: command line, both HTTP APIs, native protocol.

A request names what to do in the terms of the registry. Each interface sends it in its own form and returns the
outcome: `ACCEPTED`, or the response code of the refusal.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from typer.testing import CliRunner

from perseid.cli import app
from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.json_form import value_from_json
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.commands.records import Add, Create, Delete, Modify, Remove
from perseid.registry.context import Command
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Rules
from perseid.server.http.messages import Response
from perseid.server.native.server import NativeServer
from perseid.wire.codes import OpCode, OpFlag, ResponseCode, default_flags
from perseid.wire.requests import HandleRequest, RemoveValues, RequestBody, Resolve, ValuesRequest
from perseid.wire.sessions import Identity
from tests.cli.installation import ENVIRON
from tests.server.http.contexts import Harness, basic, serve
from tests.server.installations import ADMINISTRATOR, OPERATOR, SECRET, copy_to
from tests.server.native.native_servers import SITE, Visitor, make_server

ACCEPTED: Final = ResponseCode.SUCCESS
ANN: Final = "300:12345/ann"
"""An identity with a key and without permissions."""


@dataclass(frozen=True)
class Request:
    """A request in the terms of the registry."""

    kind: str
    """`create`, `replace` (the whole record), `add`, `modify`, `remove`, `delete`, `read` or `follow` (aliases)."""
    values: tuple[dict[str, object], ...] = ()
    """In JSON; `{handle}` in text data stands for the handle."""
    indexes: tuple[int, ...] = ()
    identity: str = ADMINISTRATOR

    def body(self, handle: str) -> list[dict[str, object]]:
        """The values for a handle."""
        return [
            {**value, "data": data.replace("{handle}", handle) if isinstance(data := value["data"], str) else data}
            for value in self.values
        ]


class Interface(Protocol):
    """An interface to which requests are sent."""

    def send(self, request: Request, handle: str) -> ResponseCode:
        """Send a request about a handle; return its outcome."""
        ...


@dataclass
class Python:
    """The registry itself."""

    registry: Registry

    def send(self, request: Request, handle: str) -> ResponseCode:
        try:
            name = Handle.parse(handle)
            values = tuple([value_from_json(value) for value in request.body(handle)])
            commands: dict[str, Command[object]] = {
                "create": Create(name, values),
                "replace": Create(name, values, overwrite=True),
                "add": Add(name, values),
                "modify": Modify(name, values),
                "remove": Remove(name, request.indexes),
                "delete": Delete(name),
            }
            self.registry.do(commands[request.kind], identity_of(request.identity), "cli")
        except InvalidName:
            return ResponseCode.INVALID_HANDLE
        except Refused as refused:
            return refused.code
        return ACCEPTED


def identity_of(text: str) -> KeyIdentity:
    """The identity of a user who proved a key."""
    reference = ValueRef.parse(text)
    return KeyIdentity(reference, Proof.SECRET_KEY, verified_index=reference.index)


@dataclass
class CommandLine:
    """The commands, in this process."""

    directory: Path

    def send(self, request: Request, handle: str) -> ResponseCode:
        values = request.body(handle)
        texts = [f"{value['index']}:{value['type']}={value['data']}" for value in values]
        indexes = [str(index) for index in request.indexes]
        words = {
            "create": ["create", handle, "--from", "-"],
            "replace": ["set", handle, "--from", "-"],
            "add": ["add", handle, *texts],
            "modify": ["set", handle, *texts],
            "remove": ["remove", handle, *indexes],
            "delete": ["delete", handle],
            "read": ["resolve", handle, "--private", *[word for index in indexes for word in ("--index", index)]],
            "follow": ["resolve", handle, "--follow"],
        }[request.kind]
        result = CliRunner().invoke(
            app,
            [*words, "--as", request.identity],
            input=json.dumps({"values": values}),
            env={**ENVIRON, "PERSEID_DIR": str(self.directory)},
        )
        match result.exception:
            case Refused() as refused:
                return refused.code
            case InvalidName():
                return ResponseCode.INVALID_HANDLE
            case InvalidData():
                return ResponseCode.PROTOCOL_ERROR
        assert result.exit_code == 0, (result.output, result.exception)
        return ACCEPTED


@dataclass
class CompatibleApi:
    """The API of deployed servers, `/api/handles`."""

    server: Harness

    def send(self, request: Request, handle: str) -> ResponseCode:
        path = f"/api/handles/{quote(handle, safe='')}"
        indexes = "&".join(f"index={index}" for index in request.indexes)
        method, query = {
            "create": ("PUT", "overwrite=false"),
            "replace": ("PUT", ""),
            "add": ("PUT", "index=various&overwrite=false"),
            "modify": ("PUT", "index=various"),
            "remove": ("DELETE", indexes),
            "delete": ("DELETE", ""),
            "read": ("GET", indexes),
        }[request.kind]
        headers = {"Content-Type": "application/json", **basic(request.identity, SECRET)}
        body = json.dumps(request.body(handle)) if method == "PUT" else ""
        answer = self.server.ask(method, f"{path}?{query}", body, headers=headers)
        return ResponseCode(json.loads(answer.body)["responseCode"])


@dataclass
class OwnApi:
    """The API `/api/v1`."""

    server: Harness

    def send(self, request: Request, handle: str) -> ResponseCode:
        path, values = f"/handles/{quote(handle, safe='')}", request.body(handle)
        indexes = "&".join(f"index={index}" for index in request.indexes)
        method, target, body = {
            "create": ("POST", "/handles", {"handle": handle, "values": values}),
            "replace": ("PUT", path, {"values": values}),
            "add": ("POST", f"{path}/values", {"values": values}),
            "modify": ("PUT", f"{path}/values", {"values": values}),
            "remove": ("DELETE", f"{path}/values?{indexes}", None),
            "delete": ("DELETE", path, None),
            "read": ("GET", f"{path}?private=true&{indexes}", None),
            "follow": ("GET", f"{path}?follow=true", None),
        }[request.kind]
        headers = {"Content-Type": "application/json", **basic(request.identity, SECRET)}
        answer: Response = self.server.ask(
            method, f"/api/v1{target}", json.dumps(body) if body else "", headers=headers
        )
        if answer.status < 300:
            return ACCEPTED
        return ResponseCode(json.loads(answer.body)["code"])


@dataclass
class NativeProtocol:
    """The native protocol, without sockets; with a challenge for each request, or in a session."""

    registry: Registry
    in_session: bool = False

    def send(self, request: Request, handle: str) -> ResponseCode:
        visitor = Visitor(NativeServer(self.registry, make_server(), SITE), now=float(self.registry.now()))
        name = handle.encode()
        values = tuple([value_from_json(value) for value in request.body(handle)])
        requests: dict[str, tuple[OpCode, RequestBody, OpFlag]] = {
            "create": (OpCode.CREATE_HANDLE, ValuesRequest(name, values), OpFlag(0)),
            "replace": (OpCode.CREATE_HANDLE, ValuesRequest(name, values), OpFlag.OVERWRITE),
            "add": (OpCode.ADD_VALUE, ValuesRequest(name, values), OpFlag(0)),
            "modify": (OpCode.MODIFY_VALUE, ValuesRequest(name, values), OpFlag(0)),
            "remove": (OpCode.REMOVE_VALUE, RemoveValues(name, request.indexes), OpFlag(0)),
            "delete": (OpCode.DELETE_HANDLE, HandleRequest(name), OpFlag(0)),
            "read": (OpCode.RESOLUTION, Resolve(name, request.indexes), OpFlag(0)),
        }
        return self._ask(visitor, request.identity, *requests[request.kind])

    def _ask(self, visitor: Visitor, identity: str, opcode: OpCode, body: RequestBody, flags: OpFlag) -> ResponseCode:
        index, _, owner = identity.partition(":")
        claimed = Identity(owner.encode(), int(index))
        session = visitor.begin_session(claimed) if self.in_session else None
        flags |= default_flags(opcode) & ~OpFlag.PUBLIC_ONLY
        message = visitor.request(opcode, body, flags=flags, session=session)
        first = visitor.ask(message, session)
        if first.code is not ResponseCode.AUTHENTICATION_NEEDED:
            return ResponseCode(first.code)
        answer = visitor.answer(first, message, claimed, SECRET.encode())
        return ResponseCode(visitor.ask(answer, session, about=message).code)


def _registry(installation: Installation) -> Registry:
    return Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))


@contextmanager
def all_interfaces(
    records: dict[str, tuple[Value, ...]], deleted: tuple[str, ...] = ()
) -> Iterator[dict[str, Interface]]:
    """Open copies of the test installation with these records, and a user Ann who has a key."""
    with tempfile.TemporaryDirectory(prefix="perseid-rules-") as folder:
        paths = []
        for name in ("cli", "server"):
            (Path(folder) / name).mkdir()
            paths.append(copy_to(Path(folder) / name))
            with Installation.open(paths[-1], environ={}) as installation:
                registry = _registry(installation)
                key = Value(300, "HS_SECKEY", SECRET.encode(), permissions=Permission(0x0C))
                for handle, values in {"12345/ann": (key,), **records}.items():
                    registry.do(Create(Handle.parse(handle), values), OPERATOR, "import")
                for handle in deleted:
                    registry.do(Delete(Handle.parse(handle)), OPERATOR, "cli")
        with Installation.open(paths[1], environ={}) as installation:
            registry = _registry(installation)
            server = serve(registry)
            server.configure(api_requests=0)
            yield {
                "cli": CommandLine(paths[0]),
                "compat": CompatibleApi(server),
                "v1": OwnApi(server),
                "native": NativeProtocol(registry),
                "session": NativeProtocol(registry, in_session=True),
            }
