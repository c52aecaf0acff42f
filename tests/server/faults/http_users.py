"""Users over HTTP, beside those of the native protocol in `clients`: PUT and DELETE, GET, and mint requests with an
idempotency key."""

import base64
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from perseid.wire.codes import ResponseCode
from tests.server.faults.clients import LIVE_NAMES, TCP_PATIENCE, Scene, User, record
from tests.server.faults.history import History, Outcome, State
from tests.server.installations import ADMINISTRATOR, PREFIX, SECRET

URL: Final = "https://example.org/"
_USER = ADMINISTRATOR.replace(":", "%3A")
_AUTHORIZATION: Final = f"Basic {base64.b64encode(f'{_USER}:{SECRET}'.encode()).decode()}"
_NO_ANSWER = (OSError, http.client.HTTPException)
_BUSY: Final = frozenset((429, 503))
"""Statuses of a request that changed nothing."""


class HttpUser(User):
    """A user with a connection that is kept, or a new one for each request."""

    def __init__(self, scene: Scene, name: str, pause: float, *, kept: bool) -> None:
        super().__init__(scene, f"{name} over {'kept ' if kept else ''}http", pause)
        self._kept = kept
        self._connection = http.client.HTTPConnection(*scene.http, timeout=TCP_PATIENCE)

    def leave(self) -> None:
        self._connection.close()

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send a request; return status, headers and body. Raises `OSError` or `HTTPException` without a response."""
        content = None if body is None else json.dumps(body).encode()
        more = {} if self._kept else {"Connection": "close"}
        asked = time.monotonic()
        try:
            self._connection.request(method, path, content, {**more, **(headers or {})})
            response = self._connection.getresponse()
            data = response.read()
        except _NO_ANSWER:
            self._connection.close()
            raise
        if response.status not in _BUSY:
            self.answered(asked)
        return response.status, response.headers, data

    def change(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, Any]]:
        """Send an authenticated request and return its JSON; status 0 without a response."""
        sent = {"Authorization": _AUTHORIZATION, "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            status, _, data = self.send(method, path, body, sent)
        except _NO_ANSWER:
            return 0, {}
        return status, json.loads(data)


class HttpWriter(HttpUser):
    """Creates, replaces and deletes its own handles with PUT and DELETE."""

    def __init__(self, scene: Scene, number: int, pause: float, *, kept: bool) -> None:
        super().__init__(scene, f"writer {number}, changes", pause, kept=kept)
        self._number = number
        self._mine: list[History] = []
        self._count = 0

    def act(self) -> None:
        self._mine = [history for history in self._mine if history.is_known and history.state is not None]
        chance = self.random.random()
        self._count += 1
        if len(self._mine) < 2 or (chance < 0.3 and len(self._mine) < LIVE_NAMES):
            self._mine.append(self.scene.book.new(f"{PREFIX}/h{self._number}-{self._count}"))
            history = self._mine[-1]
        else:
            history = self.random.choice(self._mine)
        deletes = chance > 0.85 and history.changes
        self._change(history, None if deletes else f"h{self._number}-{self._count}")

    def _change(self, history: History, state: State) -> None:
        change = history.begin(state)
        path = f"/api/handles/{history.name}"
        if state is None:
            status, answer = self.change("DELETE", path)
        else:
            values = [
                {"index": one.index, "type": one.type, "data": {"format": "string", "value": one.data.decode()}}
                for one in record(state)
            ]
            query = "?index=various&overwrite=true" if history.changes[1:] else ""  # the administrator stays
            status, answer = self.change("PUT", f"{path}{query}", {"values": values})
        outcome = Outcome.UNKNOWN
        if status in (200, 201):
            outcome = Outcome.DONE
        elif status in _BUSY:
            outcome = Outcome.REFUSED
            self.counts[str(status)] += 1
        elif status and not _is_unknown(answer):
            self.wrong(f"{history.name}: status {status}, {answer}")
        history.end(change, outcome)
        self.counts[outcome.value] += 1


class HttpReader(HttpUser):
    """Gets records and redirects of changing handles, and checks every response."""

    def __init__(self, scene: Scene, number: int, pause: float, *, kept: bool) -> None:
        super().__init__(scene, f"reader {number}, answers", pause, kept=kept)

    def act(self) -> None:
        history = self.scene.book.pick(self.random.random(), 30 if self.random.random() < 0.6 else 0)
        if history is None:
            return
        redirects = self.random.random() < 0.5
        self.counts["asked"] += 1
        asked = time.monotonic()
        try:
            found = self.send("GET", f"/{history.name}" if redirects else f"/api/handles/{history.name}")
        except _NO_ANSWER:
            self.counts["unanswered"] += 1
            return
        possible = history.possible(asked, time.monotonic())
        self.counts["answered"] += 1
        try:
            state = _state_in(*found)
        except (ValueError, KeyError) as problem:
            self.wrong(f"{history.name}: {found}: {problem!r}")
            return
        if state not in possible:
            self.wrong(f"{history.name} is {state}; possible was {possible}")


class Minter(HttpUser):
    """Mints one handle at a time, and repeats each request with its idempotency key until it is answered."""

    def __init__(self, scene: Scene, number: int, pause: float, *, kept: bool) -> None:
        super().__init__(scene, f"minter {number}", pause, kept=kept)
        self._number = number
        self._count = 0
        self._url = ""

    def act(self) -> None:
        if not self._url:
            self._count += 1
            self._url = f"{URL}minted-{self.scene.seed}-{self._number}-{self._count}"
            self.scene.minted[self._url] = None
        body = {"prefix": PREFIX, "values": [{"index": 1, "type": "URL", "data": self._url}]}
        status, answer = self.change("POST", "/api/v1/mint", body, Idempotency_Key=self._url)
        if status == 201:
            (self.scene.minted[self._url],) = answer["handles"]
            self._url = ""
            self.counts[Outcome.DONE.value] += 1
        elif status in (0, 409) or status in _BUSY or _is_unknown(answer):  # 409: the first attempt is in progress
            self.counts["repeated"] += 1
        else:
            self.wrong(f"status {status}, {answer}")


def _state_in(status: int, headers: http.client.HTTPMessage, body: bytes) -> State:
    """The state in a response; raises `ValueError` or `KeyError` if it was never written."""
    if status == 404:
        return None
    if status == 302:
        return headers["Location"].removeprefix(URL)
    if status != 200:
        raise ValueError("another status")
    data = {value["index"]: value["data"]["value"] for value in json.loads(body)["values"]}
    if data[1].encode() != record(data[2])[0].data:
        raise ValueError("half a change")
    return str(data[2])


def _is_unknown(answer: Mapping[str, Any]) -> bool:
    """Whether the server says that it does not know whether the change was made."""
    told = f"{answer.get('message', '')} {answer.get('detail', '')}"
    return ResponseCode.ERROR in (answer.get("responseCode"), answer.get("code")) and "unknown whether" in told
