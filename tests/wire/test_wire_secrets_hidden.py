"""No object and no error message shows a secret."""

import pytest

from perseid.records.errors import InvalidData
from perseid.records.keys import SecretKey
from perseid.records.private_keys import (
    DsaPrivateKey,
    PrivateKey,
    RsaPrivateKey,
    RsaPrivateKeyWithoutPrimes,
    read_key_file,
    write_key_file,
)
from perseid.wire.sessions import DEFAULT_GROUP, DhKeyPair, generate_key_pair
from tests.wire.key_material import DSA_KEY, PLAIN_RSA_KEYS, RSA_KEY, dsa_key, refused, rsa_key

WORD = b"open sesame"
PAIR = generate_key_pair(DEFAULT_GROUP, lambda count: WORD.ljust(count, b"."))

HOLDERS: list[tuple[object, list[int | bytes]]] = [
    (rsa_key(), [getattr(rsa_key(), name) for name in ("d", "p", "q", "dp", "dq", "qi")]),
    (PLAIN_RSA_KEYS[0], [PLAIN_RSA_KEYS[0].d]),
    (RSA_KEY, [RSA_KEY.to_bytes()]),
    (dsa_key(), [dsa_key().x]),
    (SecretKey(WORD), [WORD, len(WORD)]),
    (SecretKey(WORD).to_sha1(), [SecretKey(WORD).to_sha1().secret]),
    (PAIR, [PAIR.exponent]),
]


def spellings(secret: int | bytes) -> list[str]:
    """The ways to show a secret."""
    if isinstance(secret, int):
        return [str(secret), f"{secret:x}", f"{secret:X}"]
    return [secret.hex(), repr(secret)[2:-1]]


@pytest.mark.parametrize(("holder", "secrets"), HOLDERS, ids=lambda part: type(part).__name__)
def test_secrets_are_not_printed(holder: object, secrets: list[int | bytes]) -> None:
    for shown in (repr(holder), str(holder), f"{holder}", repr([holder]), repr({"key": holder})):
        for secret in secrets:
            assert not any(spelling in shown for spelling in spellings(secret))


def test_every_class_with_secrets_is_tested() -> None:
    kinds = {RsaPrivateKey, RsaPrivateKeyWithoutPrimes, DsaPrivateKey, SecretKey, DhKeyPair}
    assert {type(holder) for holder, _ in HOLDERS} == kinds
    # By name, because slots=True creates each class twice.
    assert {kind.__name__ for kind in PrivateKey.__subclasses__()} <= {kind.__name__ for kind in kinds}


def test_reprs_show_type_and_size() -> None:
    assert repr(rsa_key()) == "<RsaPrivateKey of 1024 bits>"
    assert repr(dsa_key()) == "<DsaPrivateKey of 1024 bits>"
    assert repr(SecretKey(WORD)) == "SecretKey()"
    assert repr(PAIR).startswith("DhKeyPair(public=DhPublicKey(")


def test_errors_about_secrets_do_not_show_them() -> None:
    plain = bytearray(DSA_KEY.to_bytes())
    plain[4:8] = b"XXXX"
    assert "XXXX" not in refused(PrivateKey.from_bytes, bytes(plain))
    file = write_key_file(DSA_KEY, WORD, bytes)
    with pytest.raises(InvalidData) as caught:
        read_key_file(file, b"close sesame")
    assert "sesame" not in str(caught.value)
    assert caught.value.__suppress_context__
    damaged = rsa_key().to_json() | {"d": "c2VjcmV0"}
    assert "c2Vj" not in refused(PrivateKey.from_json, damaged)
    assert "115" not in refused(PrivateKey.from_json, damaged)
