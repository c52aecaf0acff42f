"""Key exchange: both implementations against each other, the recorded exchanges, and untrusted groups."""

import hashlib
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.records.keys import MAX_DH_BITS, MIN_DH_BITS, DhPublicKey, PublicKey
from perseid.wire import sessions
from perseid.wire.sessions import (
    DEFAULT_GROUP,
    EXPONENT_LENGTH,
    Cipher,
    DhKeyPair,
    derive_session_key,
    exchange_with_library,
    exchange_with_pow,
    generate_key_pair,
    shared_secret,
)
from tests.wire import section21
from tests.wire.key_material import refused

P, G = DEFAULT_GROUP
SHORT_GROUP = ((1 << MIN_DH_BITS) - 569, 2)  # a prime
LONG_GROUP = ((1 << MAX_DH_BITS) - 1, 2)


MERSENNE = (1 << 607) - 1  # a prime whose predecessor is a multiple of three


def third_root_of_one() -> int:
    """An element of order three."""
    powers = (pow(base, (MERSENNE - 1) // 3, MERSENNE) for base in range(2, 100))
    root = next(power for power in powers if power != 1)
    assert pow(root, 3, MERSENNE) == 1
    return root


def fixed_random(seed: int) -> Callable[[int], bytes]:
    """A reproducible source of randomness."""
    return lambda count: hashlib.shake_256(seed.to_bytes(8, "big")).digest(count)


def named_prime(bits: int, irrational: Callable[[int], int], offset: int) -> int:
    """2^b - 2^(b-64) - 1 + 2^64 * ([2^(b-130) x] + offset), as in RFC 3526 (x = pi) and RFC 7919 (x = e)."""
    return (1 << bits) - (1 << bits - 64) - 1 + (irrational(bits - 130) + offset << 64)


def pi(bits: int) -> int:
    """The number times a power of two, rounded down."""

    def arc(inverse: int) -> int:
        term = total = (1 << bits + 64) // inverse
        number, sign = 1, -1
        while term:
            term //= inverse * inverse
            number += 2
            total += sign * (term // number)
            sign = -sign
        return total

    return 4 * (4 * arc(5) - arc(239)) >> 64


def euler(bits: int) -> int:
    """The number times a power of two, rounded down."""
    term, total, number = 1 << bits + 64, 0, 1
    while term:
        total += term
        term //= number
        number += 1
    return total >> 64


NAMED_PRIMES = [
    named_prime(1536, pi, 741_804),
    named_prime(2048, pi, 124_476),
    named_prime(3072, pi, 1_690_314),
    named_prime(4096, pi, 240_904),
    named_prime(2048, euler, 560_316),
    named_prime(3072, euler, 2_625_351),
    named_prime(4096, euler, 5_736_041),
]


# Recorded exchanges


@pytest.mark.parametrize(
    "power", [exchange_with_pow, exchange_with_library, shared_secret], ids=["pow", "library", "chosen"]
)
def test_key_exchange_vectors_of_the_specification_match(power: Callable[[DhKeyPair, DhPublicKey], bytes]) -> None:
    assert f"{P:x}" == section21.DH_PRIME
    assert G == 2
    exponent = int(section21.DH_EXPONENT, 16)
    peer = DhPublicKey.from_bytes(bytes.fromhex(section21.DH_PEER))
    shared = power(DhKeyPair(DhPublicKey(pow(G, exponent, P), P, G), exponent), peer)
    assert len(shared) == 128
    for cipher, key in ((1, section21.DES_KEY), (2, section21.TDES_KEY), (3, section21.AES_KEY)):
        assert f"{cipher:08x}" + derive_session_key(Cipher(cipher), shared).hex() == key


def test_default_group_is_oakley_group_2() -> None:
    assert named_prime(1024, pi, 129_093) == P


# Both implementations


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60))
@settings(max_examples=5, deadline=None)
def test_both_implementations_agree(seed: int, other: int) -> None:
    mine, theirs = (
        generate_key_pair(DEFAULT_GROUP, fixed_random(seed)),
        generate_key_pair(DEFAULT_GROUP, fixed_random(other)),
    )
    secret = exchange_with_pow(mine, theirs.public)
    assert exchange_with_library(mine, theirs.public) == exchange_with_pow(theirs, mine.public) == secret
    assert shared_secret(mine, theirs.public) == secret


@pytest.mark.parametrize("prime", NAMED_PRIMES, ids=lambda prime: f"{prime.bit_length()}-{prime % 100}")
def test_library_is_used_for_known_groups(prime: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = generate_key_pair((prime, 2), fixed_random(1)), generate_key_pair((prime, 2), fixed_random(2))
    started = time.thread_time()
    by_library = exchange_with_library(mine, theirs.public)
    assert time.thread_time() - started < 1, "the library tests this prime, which it should know"
    monkeypatch.setattr(sessions, "exchange_with_pow", None)
    assert shared_secret(mine, theirs.public) == by_library
    monkeypatch.undo()
    assert exchange_with_pow(theirs, mine.public) == by_library


def test_key_exchange_works_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    group = (NAMED_PRIMES[1], 2)
    mine, theirs = generate_key_pair(group, fixed_random(1)), generate_key_pair(group, fixed_random(2))
    expected = shared_secret(mine, theirs.public)
    monkeypatch.setattr(sessions, "LIBRARY_HAS_DH", False)
    monkeypatch.setattr(sessions, "exchange_with_library", None)
    assert shared_secret(mine, theirs.public) == expected


def test_longest_group_of_an_untrusted_peer_is_cheap() -> None:
    """The library would need seconds for a prime of this length that it does not know."""
    group = (NAMED_PRIMES[3], 3)
    started = time.thread_time()
    mine, theirs = generate_key_pair(group, fixed_random(1)), generate_key_pair(group, fixed_random(2))
    assert shared_secret(mine, theirs.public) == shared_secret(theirs, mine.public)
    assert time.thread_time() - started < 1


def test_leading_zeros_of_the_secret_are_preserved() -> None:
    """One secret in 256 starts with a zero byte, so a few hundred are enough to find one."""
    mine = generate_key_pair(DEFAULT_GROUP, fixed_random(0))
    peers = (DhPublicKey(y, P, G) for y in range(3, 3000))
    secret = next(secret for peer in peers if (secret := exchange_with_pow(mine, peer))[0] == 0)
    assert len(secret) == 128
    key = derive_session_key(Cipher.AES, secret)
    assert key[0] != 0
    assert secret.lstrip(b"\0").startswith(key)
    assert derive_session_key(Cipher.DES, secret)[0] == 1  # a zero byte with its parity bit


# Key pairs


def test_exponents_have_256_bits() -> None:
    for random in (fixed_random(5), bytes, lambda count: b"\xff" * count):
        pair = generate_key_pair(DEFAULT_GROUP, random)
        assert pair.exponent.bit_length() == 8 * EXPONENT_LENGTH == 256
        assert pair.public.y == pow(G, pair.exponent, P)
        assert (pair.public.p, pair.public.g) == DEFAULT_GROUP


@pytest.mark.parametrize("group", [SHORT_GROUP, LONG_GROUP], ids=["shortest", "longest"])
def test_groups_at_the_limits_are_accepted(group: tuple[int, int]) -> None:
    mine, theirs = generate_key_pair(group, fixed_random(1)), generate_key_pair(group, fixed_random(2))
    assert shared_secret(mine, theirs.public) == shared_secret(theirs, mine.public)
    assert len(shared_secret(mine, theirs.public)) == group[0].bit_length() // 8


@pytest.mark.parametrize(
    "group",
    [
        ((1 << MIN_DH_BITS - 1) - 1, 2),
        ((1 << MAX_DH_BITS + 1) - 1, 2),
        (P - 1, 2),
        (P, 0),
        (P, 1),
        (P, P - 1),
        (P, P),
        (-P, 2),
        (0, 2),
    ],
)
def test_invalid_groups_are_refused(group: tuple[int, int]) -> None:
    assert refused(generate_key_pair, group, fixed_random(1))


def test_generator_of_a_tiny_subgroup_is_refused() -> None:
    exponent = ((1 << 255) // 3 + 1) * 3
    group = (MERSENNE, third_root_of_one())
    assert "generator" in refused(generate_key_pair, group, lambda count: exponent.to_bytes(count, "big"))
    assert generate_key_pair(group, lambda count: (exponent + 1).to_bytes(count, "big")).public.y == group[1]


def test_key_of_another_group_is_refused() -> None:
    mine = generate_key_pair(DEFAULT_GROUP, fixed_random(1))
    other = generate_key_pair((P, 5), fixed_random(1)).public
    assert "another group" in refused(shared_secret, mine, other)
    assert "another group" in refused(shared_secret, mine, generate_key_pair(LONG_GROUP, fixed_random(1)).public)


def test_predictable_secret_is_refused() -> None:
    pair = DhKeyPair(DhPublicKey(pow(3, 6, MERSENNE), MERSENNE, 3), 6)
    assert "key exchange failed" in refused(exchange_with_pow, pair, DhPublicKey(third_root_of_one(), MERSENNE, 3))
    composite = DhKeyPair(DhPublicKey(4, LONG_GROUP[0], 2), 2)
    assert "key exchange failed" in refused(exchange_with_library, composite, composite.public)


# Session keys


@pytest.mark.parametrize(("cipher", "length"), [(Cipher.DES, 8), (Cipher.TDES, 24), (Cipher.AES, 32)])
def test_session_keys_have_the_length_of_the_cipher(cipher: Cipher, length: int) -> None:
    assert len(derive_session_key(cipher, bytes(range(64)))) == length
    assert len(derive_session_key(cipher, bytes(range(length)))) == length
    assert "short" in refused(derive_session_key, cipher, bytes(length - 1))


def test_unknown_cipher_has_no_session_key() -> None:
    assert "unknown session cipher" in refused(derive_session_key, Cipher(4), bytes(64))


@given(st.binary(min_size=64, max_size=64))
def test_des_keys_have_odd_parity(shared: bytes) -> None:
    for cipher in (Cipher.DES, Cipher.TDES):
        key = derive_session_key(cipher, shared)
        assert all(byte.bit_count() % 2 for byte in key)
        assert all(byte & 0xFE == original & 0xFE for byte, original in zip(key, shared, strict=False))


def test_leading_zeros_are_dropped_for_aes_while_the_key_is_long_enough() -> None:
    assert derive_session_key(Cipher.AES, bytes(40)) == bytes(32)
    assert derive_session_key(Cipher.AES, bytes(8) + b"\1" * 31) == bytes(1) + b"\1" * 31
    assert derive_session_key(Cipher.AES, bytes(8) + b"\1" * 40) == b"\1" * 32


def test_exchange_key_is_encoded_as_a_public_key() -> None:
    pair = generate_key_pair(DEFAULT_GROUP, fixed_random(9))
    assert PublicKey.from_bytes(pair.public.to_bytes()) == pair.public
