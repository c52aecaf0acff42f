"""Which server of a site hosts a handle: every recorded hash, and an edge case."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.errors import RecordMisuse
from perseid.records.partition import HashOption, find_server_index, partition_hash
from tests.wire import section21
from tests.wire.key_material import codec_vectors

VECTOR_FILES = ("codec-hash.json",)
VECTORS = [vector for file in VECTOR_FILES for vector in codec_vectors(file)]
OPTIONS = {"by_prefix": HashOption.PREFIX, "by_suffix": HashOption.SUFFIX, "by_all": HashOption.ALL}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_hash_vectors_match(vector: dict[str, Any]) -> None:
    handle = bytes.fromhex(vector["handle_hex"])
    assert handle == vector["handle"].encode()
    assert set(vector["result"]) == set(OPTIONS)
    for name, expected in vector["result"].items():
        assert partition_hash(handle, OPTIONS[name]) == expected.pop("hash")
        for servers, position in expected.items():
            assert find_server_index(handle, OPTIONS[name], int(servers.removeprefix("servers_"))) == position


@pytest.mark.parametrize("handle", section21.HASHES)
def test_hash_vectors_of_the_specification_match(handle: str) -> None:
    assert tuple(partition_hash(handle.encode(), option) for option in range(3)) == section21.HASHES[handle]


@given(st.binary(max_size=40), st.integers(0, 255), st.integers(1, 40))
def test_every_handle_maps_to_a_server(handle: bytes, option: int, servers: int) -> None:
    assert 0 <= find_server_index(handle, option, servers) < servers
    assert find_server_index(handle, option, servers) == find_server_index(handle.upper(), option, servers)


def test_only_ascii_letters_are_case_folded() -> None:
    assert partition_hash("12345/É".encode()) != partition_hash("12345/é".encode())


def test_unknown_hash_option_uses_the_default() -> None:
    assert partition_hash(b"12345/abc", 7) == partition_hash(b"12345/abc", HashOption.ALL)


def test_smallest_hash_maps_to_a_stable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Smallest:
        def digest(self) -> bytes:
            return bytes(12) + b"\x80\0\0\0"

    monkeypatch.setattr(hashlib, "md5", lambda *_, **__: Smallest())
    assert partition_hash(b"any/thing") == 1 << 31
    assert find_server_index(b"any/thing", HashOption.ALL, 3) == (1 << 31) % 3


def test_site_without_servers_is_refused() -> None:
    assert find_server_index(b"any", 0, 1) == 0
    with pytest.raises(RecordMisuse, match=r"^the site has no servers$"):
        find_server_index(b"any", 0, 0)
