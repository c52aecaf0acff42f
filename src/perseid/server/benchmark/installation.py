"""Records to be measured, appended to the ledger in one load."""

from typing import Final

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import Append
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.records.types import HS_ADMIN
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.setup import GROUP_INDEX, administrator_key

PREFIX: Final = "20.500.99999"
FORMAT: Final = PREFIX + "/%07d"
"""The handles, as a `printf` format: every load generator requests the same."""
INTERFACE: Final = "bench"
ADMINISTRATOR: Final = administrator_key(PREFIX)

_EMAIL = Value.text(4, "EMAIL", "someone@example.org")
_ADMIN = Value(100, HS_ADMIN, Admin(ValueRef(GROUP_INDEX, f"0.NA/{PREFIX}")).to_bytes())


def three_values(address: str) -> tuple[Value, ...]:
    """A record of usual size: URL, email, administrator."""
    return Value.text(1, "URL", f"https://example.org/items/{address}"), _EMAIL, _ADMIN


def append_request(number: int, address: str | None = None, action: Action = Action.CREATE) -> Append:
    """The record with a number, or another version of it."""
    values = three_values(address or f"{number}")
    return Append(Draft(action, State.NORMAL, FORMAT % number, INTERFACE, f"local:{INTERFACE}", values=values))


def fill(installation: Installation, records: int) -> None:
    """Load records."""
    installation.ledger.load(append_request(number).draft for number in range(records))
