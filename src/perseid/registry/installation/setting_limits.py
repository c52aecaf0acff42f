"""Settings of the section `limits`: what untrusted clients may cost.

docs/reference/limits.md gives the reasons. Upper bounds catch typing errors.
"""

from collections.abc import Mapping
from typing import Final

from .setting_types import Networks, Number, Setting

MAX_UDP_CHALLENGES: Final = 1_000
MAX_UDP_CHALLENGE_BYTES: Final = 16 << 20
"""Upper bounds for challenges over UDP and the bytes of their pending requests: a client with forged addresses can make
the server store them, so no setting allows more."""

_CORE_SHARE = Number(1, 6_400)  # percent of a core
_PERCENT = Number(1, 100)
_SECONDS = Number(1, 86_400)
_MAX_BYTES = 1 << 40


LIMIT_SETTINGS: Final[Mapping[str, Setting]] = {
    "exempt_networks": Setting(
        Networks(),
        ["127.0.0.0/8", "::1/128"],
        "Networks without limits per source: this machine and your own proxies. Limits for all clients together still "
        "apply.",
    ),
    "udp_octets": Setting(
        Number(0, _MAX_BYTES),
        1 << 20,
        "UDP response rate per network (IPv4 /24, IPv6 /56); 0 for no limit. Beyond it, clients switch to TCP.",
        "bytes per second",
    ),
    "udp_burst": Setting(Number(1 << 16, _MAX_BYTES), 8 << 20, "UDP response burst per network.", "bytes"),
    "udp_handovers": Setting(
        Number(0, 1_000_000),
        1_000,
        "UDP datagrams per network other than public resolution; 0 for no limit.",
        "datagrams per second",
    ),
    "udp_handovers_in_all": Setting(
        Number(10, 1_000_000),
        1_000,
        "UDP datagrams of all networks other than public resolution.",
        "datagrams per second",
    ),
    "udp_challenges": Setting(
        Number(1, MAX_UDP_CHALLENGES), MAX_UDP_CHALLENGES, "Maximum pending challenges over UDP."
    ),
    "udp_challenge_octets": Setting(
        Number(1 << 16, MAX_UDP_CHALLENGE_BYTES),
        MAX_UDP_CHALLENGE_BYTES,
        "Maximum size of the requests with pending challenges over UDP.",
        "bytes",
    ),
    "tcp_challenges": Setting(Number(1, 1_000_000), 10_000, "Maximum pending challenges over TCP and HTTP."),
    "tcp_challenge_octets": Setting(
        Number(1 << 18, 1 << 32),
        64 << 20,
        "Maximum size of the requests with pending challenges over TCP and HTTP.",
        "bytes",
    ),
    "tcp_unfinished_octets": Setting(
        Number(1 << 20, 1 << 40),
        64 << 20,
        "Maximum size of incomplete messages over TCP; beyond it, the client with most of it is disconnected.",
        "bytes",
    ),
    "sessions": Setting(Number(1, 1_000_000), 10_000, "Maximum number of sessions; beyond it, the oldest one ends."),
    "unproved_sessions": Setting(Number(1, 1_000_000), 1_000, "Maximum number of unauthenticated sessions."),
    "connections": Setting(
        Number(1, 1_000_000), 4_096, "Maximum number of TCP connections, if the system allows as many."
    ),
    "connections_per_address": Setting(
        Number(1, 1_000_000),
        256,
        "Maximum number of TCP connections per address (IPv6: per /64; a /56 has twice as many, a /48 four times).",
    ),
    "http_at_once": Setting(
        Number(1, 1_000_000),
        2_000,
        "HTTP requests per address answered directly from the answers view; further ones use the regular path, which "
        "has a work budget.",
        "requests per second",
    ),
    "message_time": Setting(_SECONDS, 30, "Time limit for receiving a complete message over TCP.", "seconds"),
    "idle_time": Setting(_SECONDS, 300, "Idle time after which a connection is closed.", "seconds"),
    "take_time": Setting(_SECONDS, 30, "Time limit for a client to receive its response.", "seconds"),
    "failed_proofs": Setting(
        Number(1, 1_000_000),
        30,
        "Failed authentication attempts per address before it must wait, and failed attempts of all addresses per "
        "handle. Failures over UDP do not affect TCP.",
        "attempts per minute",
    ),
    "read_share": Setting(_CORE_SHARE, 100, "CPU share for reading the ledger.", "percent of a core"),
    "write_share": Setting(_CORE_SHARE, 100, "CPU share for deciding changes.", "percent of a core"),
    "sign_share": Setting(_CORE_SHARE, 50, "CPU share for signing responses.", "percent of a core"),
    "verify_share": Setting(_CORE_SHARE, 50, "CPU share for verifying signatures and secrets.", "percent of a core"),
    "agree_share": Setting(_CORE_SHARE, 20, "CPU share for setting up sessions.", "percent of a core"),
    "handshake_share": Setting(_CORE_SHARE, 50, "CPU share for TLS handshakes.", "percent of a core"),
    "udp_share": Setting(_PERCENT, 40, "Part of each CPU share available to all UDP clients.", "percent"),
    "source_share": Setting(_PERCENT, 10, "Part of each CPU share available to one address.", "percent"),
    "proved_source_share": Setting(
        _PERCENT, 50, "Part of each CPU share available to one address with an authenticated client.", "percent"
    ),
    "reserved_share": Setting(
        Number(0, 90), 25, "Part of each CPU share and queue reserved for authenticated addresses.", "percent"
    ),
    "read_queue": Setting(Number(4, 100_000), 256, "Maximum queued ledger requests."),
    "write_queue": Setting(Number(4, 100_000), 512, "Maximum queued changes."),
    "arithmetic_queue": Setting(
        Number(4, 100_000), 64, "Maximum queued signatures, verifications and session setups, each."
    ),
}
"""Settings of the section by key."""
