"""What the tests of the ledger share: a machine with clocks, and requests to append."""

from perseid.ledger.clock import RELEASED, SECOND, CheckedClock
from perseid.ledger.entry import Action, Draft, State
from perseid.ledger.log import Append, Appended, Outcome
from perseid.records import Permission, Value

ORIGIN = "ledger.example.org"
NOW = RELEASED + 365 * 86_400 * SECOND


class Machine:
    """A machine whose wall clock can be set; the monotonic one cannot."""

    def __init__(self, wall: int = NOW) -> None:
        self.wall, self.monotonic = wall, 5 * SECOND

    def run(self, microseconds: int) -> None:
        self.wall += microseconds
        self.monotonic += microseconds

    def clock(self, *, accepted: bool = False) -> CheckedClock:
        return CheckedClock(lambda: self.wall, lambda: self.monotonic, accepted=accepted)


def url(data: str, index: int = 1) -> Value:
    return Value.text(index, "URL", data)


def secret(data: bytes, index: int = 300) -> Value:
    return Value(index, "HS_SECKEY", data, permissions=Permission(0x0C))


def change(
    name: str, *values: Value, action: Action = Action.UPDATE, state: State = State.NORMAL, **rests_on: int
) -> Append:
    """A request about `10.1/name`; `rests_on` names records likewise."""
    draft = Draft(action, state, f"10.1/{name}", "cli", "local:alice", values=values)
    return Append(key(name), draft, {key(other): seq for other, seq in rests_on.items()})


def key(name: str) -> bytes:
    return f"10.1/{name}".upper().encode()


def appended(outcome: Outcome) -> Appended:
    assert isinstance(outcome, Appended)
    return outcome
