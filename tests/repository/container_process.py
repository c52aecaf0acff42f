"""Become the first process of a container: mount its file system, drop privileges, and execute the command.

    unshare --mount --pid --net --ipc --uts --fork python container_process.py OPTIONS COMMAND...

OPTIONS is a JSON object, see `Options`. This does what a container engine does, as far as `Containerfile` needs it.
"""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from typing import Final, TypedDict

_SET_FLAGS: Final = 0x8914  # SIOCSIFFLAGS
_UP: Final = 0x1


class Options(TypedDict):
    """What the command gets."""

    root: str
    user: int
    volumes: dict[str, str]
    """Folders by their place in the container."""
    read_only: bool
    """Whether the file system is read-only except for volumes and /tmp."""


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _start(options: Options, command: list[str]) -> None:
    root = options["root"]
    with socket.socket() as loopback:
        fcntl.ioctl(loopback, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    if options["read_only"]:
        _mount("--bind", root, root)
        _mount("-o", "remount,bind,ro", root)
        _mount("-t", "tmpfs", "tmp", f"{root}/tmp")
    _mount("-t", "proc", "proc", f"{root}/proc")
    _mount("--bind", "/dev", f"{root}/dev")
    # The size that engines give it.
    _mount("-t", "tmpfs", "-o", "size=64m", "shm", f"{root}/dev/shm")
    for place, folder in options["volumes"].items():
        _mount("--bind", folder, root + place)
    os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setgid(options["user"])
    os.setuid(options["user"])
    os.execvp(command[0], command)


if __name__ == "__main__":
    _start(json.loads(sys.argv[1]), sys.argv[2:])
