"""Concurrent users of a server: writers with their own handles, readers, and attackers who send garbage.

Each has a thread, pauses between two requests, and records the results. A response that no state between request and
response explains is an error; a missing response is not.
"""

import contextlib
import random
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from perseid.records.record import Permission, Value
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import OpCode, OpFlag, RemoteProtocolError, ResponseCode, default_flags
from perseid.wire.requests import HandleRequest, Resolve, ValuesRequest
from perseid.wire.responses import Failure, ResolutionResult
from tests.server.faults.history import Book, History, Outcome, State
from tests.server.installations import ADMINISTRATOR, NAMES, PREFIX, SECRET, values_of
from tests.server.native.native_client import NativeClient, NoAnswer, Via
from tests.server.running import Address

TCP_PATIENCE: Final = 30.0
UDP_PATIENCE: Final = 12.0
UDP_ATTEMPTS: Final = 6
"""Longer than a process takes to come back: who asks meanwhile is answered late and not never."""

LIVE_NAMES: Final = 8
"""Handles of a writer at a time: few, so that readers often see a change."""

PRIVATE: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE

_REFUSED: Final = frozenset((ResponseCode.SERVER_TOO_BUSY, ResponseCode.SESSION_TIMEOUT, ResponseCode.AUTHEN_TIMEOUT))
"""Codes of an overloaded or restarted server: that message changed nothing."""

_NO_ANSWER = (NoAnswer, OSError)


@dataclass
class Scene:
    """Shared state."""

    direct: Address
    """The server."""
    network: Address
    """The UDP relay that loses packets."""
    http: Address
    seed: int
    book: Book = field(default_factory=Book)
    ending: threading.Event = field(default_factory=threading.Event)
    wrong: list[str] = field(default_factory=list)
    """Errors."""
    minted: dict[str, str | None] = field(default_factory=dict)
    """The URL of each requested handle, and the handle once it is known."""

    def client(self, via: Via) -> NativeClient:
        """A client, over the bad network for UDP."""
        if via is Via.UDP:
            return NativeClient(self.network, via, timeout=UDP_PATIENCE, attempts=UDP_ATTEMPTS)
        return NativeClient(self.direct, via, timeout=TCP_PATIENCE)


class User(ABC, threading.Thread):
    """A thread that does one thing after the other."""

    def __init__(self, scene: Scene, name: str, pause: float) -> None:
        super().__init__(name=name, daemon=True)
        self.scene = scene
        self.random = random.Random(f"{scene.seed}-{name}")
        self.counts: Counter[str] = Counter()
        self.answers: list[tuple[float, float]] = []
        """When each answered request was sent, and when its answer came."""
        self._pause = pause

    def run(self) -> None:
        try:
            while not self.scene.ending.wait(self.random.uniform(0.5, 1.5) * self._pause):
                self.act()
        except Exception:  # noqa: BLE001 - recorded as an error
            self.scene.wrong.append(f"{self.name}: {traceback.format_exc()}")
        finally:
            self.leave()

    @abstractmethod
    def act(self) -> None:
        """Do one thing."""

    def leave(self) -> None:
        """Clean up."""

    def answered(self, asked: float) -> None:
        """Record that a request was answered now."""
        self.answers.append((asked, time.monotonic()))

    def wrong(self, text: str) -> None:
        self.scene.wrong.append(f"{self.name}: {text}")


def record(state: str, *, private: bool = False) -> tuple[Value, ...]:
    """The values of a handle in a state: two, so that half a change would show; optionally a private one."""
    shown = (Value.text(1, "URL", f"https://example.org/{state}"), Value.text(2, "DESC", state))
    return (*shown, Value(3, "NOTE", b"for administrators", permissions=PRIVATE)) if private else shown


def state_in(answer: VerifiedResponse, *, public: bool = True) -> State:
    """The state in a resolution response; raises `ValueError` if it was never written, or is private."""
    if answer.code is ResponseCode.HANDLE_NOT_FOUND:
        return None
    if answer.code is not ResponseCode.SUCCESS or not isinstance(answer.body, ResolutionResult):
        raise ValueError(f"{answer.code.name} {_failure_text(answer)}")
    found = {value.index: value.data for value in answer.body.values}
    state = found.get(2, b"").decode()
    if found.get(1) != record(state)[0].data or (public and 3 in found):
        raise ValueError(f"what nobody wrote, or half a change: {found}")
    return state


class Writer(User):
    """Creates, modifies and deletes its own handles: in a session, or with a challenge for each change."""

    def __init__(self, scene: Scene, number: int, via: Via, pause: float, *, in_session: bool) -> None:
        kind = f"{'session' if in_session else 'challenges'} over {via.value}"
        super().__init__(scene, f"writer {number}, {kind}", pause)
        self._number = number
        self._in_session = in_session
        self._client = scene.client(via)
        self._client.act_as(ADMINISTRATOR, SECRET)
        self._mine: list[History] = []
        self._count = 0

    def leave(self) -> None:
        self._client.close()

    def act(self) -> None:
        if self._in_session and self._client.session is None and not self._begin_session():
            return
        self._mine = [history for history in self._mine if history.is_known and history.state is not None]
        chance = self.random.random()
        if len(self._mine) < 2 or (chance < 0.3 and len(self._mine) < LIVE_NAMES):
            self._count += 1
            history = self.scene.book.new(f"{PREFIX}/w{self._number}-{self._count}")
            values = record(token := self._token(), private=self.random.random() < 0.3)
            self._change(history, token, OpCode.CREATE_HANDLE, ValuesRequest(history.name.encode(), values))
            self._mine.append(history)
            return
        history = self.random.choice(self._mine)
        if chance > 0.85:
            self._change(history, None, OpCode.DELETE_HANDLE, HandleRequest(history.name.encode()))
        else:
            token = self._token()
            self._change(history, token, OpCode.MODIFY_VALUE, ValuesRequest(history.name.encode(), record(token)))
        if self.random.random() < 0.2 and history.is_known:
            self._look(history)

    def _token(self) -> str:
        """A unique token."""
        self._count += 1
        return f"{self._number}-{self._count}"

    def _begin_session(self) -> bool:
        self._client.session = None
        try:
            self._client.begin_session()
        except _NO_ANSWER:
            self.counts["no session"] += 1
            return False
        except RemoteProtocolError as problem:
            self.counts["no session"] += 1
            if problem.code is not ResponseCode.SESSION_FAILED:
                self.wrong(f"a wish for a session: {problem}")
            return False
        self.counts["sessions"] += 1
        return True

    def _change(self, history: History, state: State, opcode: OpCode, body: HandleRequest | ValuesRequest) -> None:
        change = history.begin(state)
        code, words = self._ask(opcode, body)
        if code is ResponseCode.SUCCESS:
            self.answered(change.started)
        outcome = Outcome.UNKNOWN
        if code is ResponseCode.SUCCESS:
            outcome = Outcome.DONE
        elif code is ResponseCode.ERROR and "unknown whether" in words:
            self.counts["unknown to the server"] += 1
        elif code is not None:
            if code not in _REFUSED:
                self.wrong(f"{opcode.name} of {history.name}: {code.name} {words}")
            elif self._client.via is not Via.UDP:
                # Over UDP another attempt of the same request may have been, or may still be, carried out.
                outcome = Outcome.REFUSED
            self.counts[code.name] += 1
        history.end(change, outcome)
        self.counts[outcome.value] += 1
        if outcome is not Outcome.DONE:
            self._client.session = None
            self._client.close()

    def _ask(self, opcode: OpCode, body: HandleRequest | ValuesRequest) -> tuple[ResponseCode | None, str]:
        """The response to a change; None without one."""
        try:
            answer = self._client.do(opcode, body)
        except _NO_ANSWER:
            return None, ""
        except RemoteProtocolError as problem:
            if problem.code not in _REFUSED:
                self.wrong(f"{opcode.name}: {problem}")
            return problem.code, str(problem)
        return answer.code, _failure_text(answer)

    def _look(self, history: History) -> None:
        """Check a change, with the private values."""
        asked = time.monotonic()
        try:
            answer = self._client.resolve(history.name, flags=default_flags(OpCode.RESOLUTION) & ~OpFlag.PUBLIC_ONLY)
            if answer.code in _REFUSED or answer.code is ResponseCode.SESSION_MESSAGE_REJECTED:
                # The last one is for a copy that the network made, and may overtake the answer.
                self._client.session = None
                return
            if (state := state_in(answer, public=False)) not in history.possible(asked, time.monotonic()):
                self.wrong(f"{history.name} is {state} for its writer, not {history.state}")
            self.counts["looked"] += 1
        except _NO_ANSWER:
            self._client.session = None
        except RemoteProtocolError as problem:
            self._client.session = None
            if problem.code not in _REFUSED:
                self.wrong(f"{history.name} for its writer: {problem}")
        except ValueError as problem:
            self.wrong(f"{history.name} for its writer: {problem}")


class Reader(User):
    """Resolves handles, changing ones and others, and checks every response."""

    def __init__(self, scene: Scene, number: int, via: Via, pause: float, *, certified: bool = False) -> None:
        kind = f"{'signed answers' if certified else 'answers'} over {via.value}"
        super().__init__(scene, f"reader {number}, {kind}", pause)
        self._client = scene.client(via)
        self._certified = certified
        self._flags = default_flags(OpCode.RESOLUTION) | (OpFlag.CERTIFY if certified else OpFlag(0))

    def leave(self) -> None:
        self._client.close()

    def act(self) -> None:
        chance = self.random.random()
        history = self.scene.book.pick(self.random.random(), 30 if chance < 0.6 else 0)
        self.counts["asked"] += 1
        asked = time.monotonic()
        try:
            if history is None or chance > 0.9:
                self._unchanged()
            else:
                self._changing(history)
            self.answered(asked)
        except _NO_ANSWER:
            self.counts["unanswered"] += 1
            self._client.close()
        except RemoteProtocolError as problem:
            # A signed answer has two packets. Those of two answers, to two copies of the request, may come mixed, and
            # then the signature is what tells; over TCP there is no such excuse.
            if self._certified and self._client.via is Via.UDP and "is not signed" in str(problem):
                self.counts["mixed up"] += 1
            else:
                self.wrong(str(problem))
        except ValueError as problem:
            self.wrong(f"{history and history.name}: {problem}")

    def _changing(self, history: History) -> None:
        asked = time.monotonic()
        answer = self._client.resolve(history.name, flags=self._flags)
        answered = time.monotonic()
        if self._certified and answer.code is ResponseCode.SERVER_TOO_BUSY:
            self.counts["too busy"] += 1
            return
        state, possible = state_in(answer), history.possible(asked, answered)
        if state not in possible:
            self.wrong(f"{history.name} is {state}; possible was {possible}")
        self.counts["answered"] += 1

    def _unchanged(self) -> None:
        number = self.random.randrange(NAMES)
        answer = self._client.resolve(f"{PREFIX}/n{number}", flags=self._flags)
        expected = {value.index: value.data for value in values_of(number)}
        values = answer.body.values if isinstance(answer.body, ResolutionResult) else ()
        found = {value.index: value.data for value in values if value.index in expected}
        if found != expected:
            raise ValueError(f"{PREFIX}/n{number}: {answer.code.name} {found}")
        self.counts["answered"] += 1


class Attacker(User):
    """Sends garbage, or almost valid messages."""

    def __init__(self, scene: Scene, number: int, via: Via, pause: float) -> None:
        super().__init__(scene, f"attacker {number} over {via.value}", pause)
        self._via = via
        client = NativeClient(scene.direct, via)
        requests = (
            client.request(OpCode.RESOLUTION, Resolve(f"{PREFIX}/n1".encode())),
            client.request(OpCode.CREATE_HANDLE, ValuesRequest(f"{PREFIX}/never".encode(), record("never"))),
            client.request(OpCode.GET_SITE_INFO, HandleRequest()),
        )
        frames = [client.client.pack(request, None) for request in requests]
        self._messages = [frame.envelope.to_bytes() + frame.payload for frame in frames]
        # One for all: the port of a closed one may be given to somebody else before the answer comes to it.
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def act(self) -> None:
        raw = garbage(self.random, self._messages)
        self.counts["sent"] += 1
        with contextlib.suppress(OSError):
            if self._via is Via.UDP:
                self._udp.sendto(raw[:1_400], self.scene.direct)
            else:
                with socket.create_connection(self.scene.direct, 0.5) as sending:
                    sending.settimeout(0.2)
                    sending.sendall(raw)
                    if self.random.random() < 0.5:
                        sending.shutdown(socket.SHUT_WR)
                    while sending.recv(65_536):
                        pass

    def leave(self) -> None:
        self._udp.close()


def garbage(chance: random.Random, messages: list[bytes]) -> bytes:
    """Random bytes, or a changed or truncated message."""
    kind = chance.random()
    if kind < 0.4:
        return chance.randbytes(chance.choice((0, 1, 19, 20, 44, 100, 511, 512, 513, 1_200)))
    raw = bytearray(chance.choice(messages))
    for _ in range(chance.randrange(1, 6)):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    if kind < 0.6:
        return bytes(raw[: chance.randrange(len(raw))])
    if kind < 0.7:  # the first part of a message of which no other comes
        raw[2] |= 0x20
        raw[16:20] = chance.randrange(1 << 18).to_bytes(4, "big")
    return bytes(raw)


def _failure_text(answer: VerifiedResponse) -> str:
    return answer.body.sentence if isinstance(answer.body, Failure) else ""
