"""Notifications to the service manager: sd_notify(3) of systemd.

Each message is one datagram of lines `NAME=value` to the Unix socket that NOTIFY_SOCKET names: a path, or after an `@`
a name in the abstract namespace. Without the variable nothing is sent. A service must not fail or block because its
manager does not listen: functions return whether the datagram was sent and never raise.

Only the supervisor notifies, because the manager accepts messages of the main process only; it removes `VARIABLES` from
the environment of its children. Addresses of virtual machines (`vsock:`) are not supported.
"""

import os
import socket
from collections.abc import Mapping
from time import monotonic_ns
from typing import Final

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Environment variables for the main process only."""

MAX_STATUS: Final = 200
"""Characters of the longest status: one line of `systemctl status`."""

_ABSTRACT = "@"


def notify(state: str, environ: Mapping[str, str] | None = None) -> bool:
    """Send lines `NAME=value`; return whether they were sent."""
    path = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", _ABSTRACT)):
        return False
    address = "\0" + path[1:] if path.startswith(_ABSTRACT) else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode("utf-8", "replace"), address)
    except (OSError, ValueError):  # ValueError: a path with a null byte
        return False
    return True


def ready(text: str = "") -> bool:
    """Report that the server is ready, after start and after a reload."""
    return notify("READY=1" + _status(text))


def reloading() -> bool:
    """Report that a reload has started, with its time; `ready` ends it."""
    return notify(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns() // 1_000}")


def stopping() -> bool:
    """Report that the server finishes started work and ends."""
    return notify("STOPPING=1")


def watchdog() -> bool:
    """Report that the server is alive; call at least twice in WatchdogSec."""
    return notify("WATCHDOG=1")


def _status(text: str) -> str:
    """A status line; line breaks in it would start another message."""
    status = "".join(each if each.isprintable() else " " for each in text[:MAX_STATUS])
    return f"\nSTATUS={status}" if status else ""
