"""The settings of the section `limits`: what strangers may cost, each with its default and the reason for it.

docs/reference/limits.md is the manual of them. Numbers have an upper end by which a slip of the keyboard is noticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .setting_kinds import Networks, Number, SettingType

MAX_UDP_CHALLENGES: Final = 1_000
MAX_UDP_CHALLENGE_BYTES: Final = 16 << 20
"""The most challenges over UDP, and the most octets of the requests that wait for them: whoever forges addresses can
have the server keep them, so no setting allows more."""

_CORE_SHARE = Number(1, 6_400)  # percent of a core
_PERCENT = Number(1, 100)
_SECONDS = Number(1, 86_400)
_MAX_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Limit:
    """One setting of the section; the fields are those of `config_keys.Setting`."""

    kind: SettingType
    default: object
    about: str
    unit: str = ""


LIMIT_SETTINGS: Final[Mapping[str, Limit]] = {
    "exempt_networks": Limit(
        Networks(),
        ["127.0.0.0/8", "::1/128"],
        "Networks to which no limit by source applies: this machine, and proxies that one runs oneself. What holds in "
        "all holds for them too.",
    ),
    "udp_octets": Limit(
        Number(0, _MAX_BYTES),
        1 << 20,
        "What a network (/24 of IPv4, /56 of IPv6) may draw over UDP; 0 is no limit. Beyond it clients go to TCP.",
        "octets a second",
    ),
    "udp_burst": Limit(
        Number(1 << 16, _MAX_BYTES), 8 << 20, "What a network that drew nothing may draw at once over UDP.", "octets"
    ),
    "udp_handovers": Limit(
        Number(0, 1_000_000),
        1_000,
        "How many datagrams that are no public resolution a network may send over UDP; 0 is no limit.",
        "datagrams a second",
    ),
    "udp_handovers_in_all": Limit(
        Number(10, 1_000_000),
        1_000,
        "How many such datagrams all networks together may send.",
        "datagrams a second",
    ),
    "udp_challenges": Limit(
        Number(1, MAX_UDP_CHALLENGES), MAX_UDP_CHALLENGES, "How many challenges wait for an answer over UDP at most."
    ),
    "udp_challenge_octets": Limit(
        Number(1 << 16, MAX_UDP_CHALLENGE_BYTES),
        MAX_UDP_CHALLENGE_BYTES,
        "How much the requests take that wait for them.",
        "octets",
    ),
    "tcp_challenges": Limit(
        Number(1, 1_000_000), 10_000, "How many challenges wait for an answer over TCP and HTTP at most."
    ),
    "tcp_challenge_octets": Limit(
        Number(1 << 18, 1 << 32), 64 << 20, "How much the requests take that wait for them.", "octets"
    ),
    "tcp_unfinished_octets": Limit(
        Number(1 << 20, 1 << 40),
        64 << 20,
        "How much may have come over TCP of messages that are not whole; whoever sent the most of it is cut.",
        "octets",
    ),
    "sessions": Limit(Number(1, 1_000_000), 10_000, "How many sessions there are at most; the oldest makes room."),
    "unproved_sessions": Limit(
        Number(1, 1_000_000), 1_000, "How many of them are sessions in which nobody has proved who they are."
    ),
    "connections": Limit(
        Number(1, 1_000_000), 4_096, "How many TCP connections there are at most, if the system allows so many."
    ),
    "connections_per_address": Limit(
        Number(1, 1_000_000),
        256,
        "How many of them come from one address at most (a /64 of IPv6; a /56 has twice as many, a /48 four times).",
    ),
    "http_at_once": Limit(
        Number(1, 1_000_000),
        2_000,
        "How many HTTP requests of one address are answered from the view at once; further ones take the usual way, "
        "whose work has a budget.",
        "a second",
    ),
    "message_time": Limit(_SECONDS, 30, "In which time a whole message must have come over TCP.", "seconds"),
    "idle_time": Limit(_SECONDS, 300, "How long a connection is kept on which nothing is asked.", "seconds"),
    "take_time": Limit(_SECONDS, 30, "In which time a client must take its answer.", "seconds"),
    "failed_proofs": Limit(
        Number(1, 1_000_000),
        30,
        "How often an address may fail to prove who it is before it has to wait; and how often all together may have "
        "wrong answers verified about one handle. What fails over UDP never counts for TCP.",
        "a minute",
    ),
    "read_share": Limit(_CORE_SHARE, 100, "How much of a core reading the ledger may take.", "percent"),
    "write_share": Limit(_CORE_SHARE, 100, "How much of a core deciding on changes may take.", "percent"),
    "sign_share": Limit(_CORE_SHARE, 50, "How much of a core signed answers may take.", "percent"),
    "verify_share": Limit(_CORE_SHARE, 50, "How much of a core checking signatures and secrets may take.", "percent"),
    "agree_share": Limit(_CORE_SHARE, 20, "How much of a core setting up sessions may take.", "percent"),
    "handshake_share": Limit(_CORE_SHARE, 50, "How much of a core TLS handshakes may take.", "percent"),
    "udp_share": Limit(
        _PERCENT, 40, "What those who come over UDP may take, beside the others: so much of each share.", "percent"
    ),
    "source_share": Limit(_PERCENT, 10, "What one address may take: so much of each share.", "percent"),
    "proved_source_share": Limit(
        _PERCENT, 50, "The same for an address from which somebody has proved who they are.", "percent"
    ),
    "reserved_share": Limit(
        Number(0, 90), 25, "So much of each share, and of each queue, is for such addresses alone.", "percent"
    ),
    "read_queue": Limit(Number(4, 100_000), 256, "How many requests to the ledger wait at most."),
    "write_queue": Limit(Number(4, 100_000), 512, "How many changes wait at most."),
    "arithmetic_queue": Limit(
        Number(4, 100_000), 64, "How many of each wait at most: signatures, proofs, and wishes for sessions."
    ),
}
"""Every setting of the section by its key."""
