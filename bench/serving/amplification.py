"""What an attacker with forged addresses can have a server send over UDP: `python -m bench.serving.amplification`.

    --networks 1,64   networks (/24) whose addresses are forged, one line for each number
    --rate 1000       requests a second, for all networks together
    --seconds 5       duration; the first second, which includes the bursts, is shown by itself
    --set NAME=VALUE  a setting of the server, such as limits.udp_octets=0, repeatedly

The requests are for a record whose response has 16 packets, the most that are sent over UDP. The server counts the
bytes that it sends, short responses included. The factor is these bytes for each byte of the requests.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Final

from perseid.wire.codes import OpCode
from perseid.wire.requests import Resolve
from tests.server.faults.sources import NOBODY_EXEMPT, SourceClient, datagrams, metrics
from tests.server.installations import PREFIX, copy_to
from tests.server.native.native_client import Serving, serving

HANDLE: Final = f"{PREFIX}/long".encode()
ROUNDS_PER_SECOND: Final = 50
"""Requests are sent in so many groups a second, so that the sleeps between them are exact enough."""


def flood(server: Serving, networks: int, rate: int, seconds: int, first: int) -> list[tuple[int, int]]:
    """Request the record from each network in turn; return the bytes sent and received in each second."""
    request = SourceClient(server.native, "").packed(OpCode.RESOLUTION, Resolve(HANDLE))
    sockets = [datagrams(f"127.{first}.{number}.1", server.native) for number in range(networks)]
    counts, sent = [], 0
    received_before = _sent_bytes(server)
    begun = time.monotonic()
    for round_number in range(1, seconds * ROUNDS_PER_SECOND + 1):
        while sent < rate * round_number // ROUNDS_PER_SECOND:
            sent += 1
            sockets[sent % networks].send(request[:8] + sent.to_bytes(4, "big") + request[12:])
        time.sleep(max(0.0, begun + round_number / ROUNDS_PER_SECOND - time.monotonic()))
        if round_number % ROUNDS_PER_SECOND == 0:
            received = _sent_bytes(server)
            counts.append((rate * len(request), received - received_before))
            received_before = received
    for sock in sockets:
        sock.close()
    return counts


def _sent_bytes(server: Serving) -> int:
    return int(metrics(server)["perseid_udp_sent_bytes_total"])


def _describe(counts: list[tuple[int, int]]) -> str:
    sent, received = (sum(column) for column in zip(*counts, strict=True))
    return f"{received / len(counts) / 1024:10,.0f} KiB/s  {received / sent:6.1f}x"


def main() -> None:
    """Print one line for each number of networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="1,64")
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    settings = dict(NOBODY_EXEMPT)
    for name, _, value in (each.partition("=") for each in options.set):
        settings[f"PERSEID_{name.upper().replace('.', '_')}"] = value
    with tempfile.TemporaryDirectory() as folder, serving(copy_to(Path(folder)), **settings) as server:
        for first, networks in enumerate(map(int, options.networks.split(",")), 1):
            counts = flood(server, networks, options.rate, options.seconds, first)
            time.sleep(3)  # until the bucket of all networks is full again
            print(f"{networks:4} networks: first second {_describe(counts[:1])}, then {_describe(counts[1:])}")


if __name__ == "__main__":
    main()
