"""Telling the service manager how the server is: the notification protocol of systemd (sd_notify(3)).

Each message is one datagram of lines `NAME=value` to the Unix socket that the variable NOTIFY_SOCKET names: a path, or
after an `@` a name in the abstract namespace. Without the variable nobody is there to be told, and nothing happens. A
service must not fail, or wait, because its manager does not listen: every function says whether the datagram was sent,
and none of them raises.

Only the supervisor notifies. It takes the variables out of the environment of the processes that it starts (see
`VARIABLES`), as the manager believes the main process only. Addresses of virtual machines (`vsock:`) are not served:
there the manager of the whole machine is meant.
"""

import os
import socket
from collections.abc import Mapping
from time import monotonic_ns
from typing import Final

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""The variables by which the manager speaks to the main process; no other process should have them."""

MAX_STATUS: Final = 200
"""Characters of the longest status: what fits into a line of `systemctl status`."""

_ABSTRACT = "@"


def notify(state: str, environ: Mapping[str, str] | None = None) -> bool:
    """Send lines `NAME=value` as they are; whether there was somebody to send them to."""
    path = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", _ABSTRACT)):
        return False
    address = "\0" + path[1:] if path.startswith(_ABSTRACT) else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode("utf-8", "replace"), address)
    except (OSError, ValueError):  # ValueError: a path with a zero octet in it
        return False
    return True


def ready(text: str = "") -> bool:
    """The server serves: at the start, and again after it was told to reload."""
    return notify("READY=1" + _status(text))


def reloading(text: str = "") -> bool:
    """The settings are read again; `ready` ends it. The manager wants to know since when."""
    return notify(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns() // 1_000}" + _status(text))


def stopping(text: str = "") -> bool:
    """The server finishes what it has begun, and ends."""
    return notify("STOPPING=1" + _status(text))


def watchdog() -> bool:
    """The server is alive; to be said at least twice in the time that the manager waits for it (WatchdogSec)."""
    return notify("WATCHDOG=1")


def _status(text: str) -> str:
    """A line with words for people; a line break in them would begin another message to the manager."""
    status = "".join(each if each.isprintable() else " " for each in text[:MAX_STATUS])
    return f"\nSTATUS={status}" if status else ""
