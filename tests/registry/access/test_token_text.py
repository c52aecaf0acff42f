"""The text of a token: round trips, recognizable, and never printed by mistake."""

import hashlib
import pickle
import re
import secrets
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.registry.access import token_records
from perseid.registry.access.token_records import PATTERN, InvalidToken, Secret, is_id

IDS = "abcdefghijklmnopqrstuvwxyz234567"
made = st.builds(Secret, st.text(IDS, min_size=8, max_size=8), st.binary(min_size=32, max_size=32))
EDGES = [bytes(32), b"\xff" * 32, bytes(31) + b"\x01", b"\x80" + bytes(31)]


@given(made)
def test_token_text_round_trips(secret: Secret) -> None:
    text = secret.text()
    assert Secret.parse(text) == secret
    assert re.fullmatch(PATTERN, text)
    assert len(text) == 65


@pytest.mark.parametrize("raw", EDGES)
def test_smallest_and_largest_secret(raw: bytes) -> None:
    secret = Secret("aaaaaaaa", raw)
    assert Secret.parse(secret.text()) == secret


@given(made, st.integers(0, 64), st.characters(codec="ascii"))
def test_every_typo_of_one_character_is_detected(secret: Secret, place: int, character: str) -> None:
    text = secret.text()
    changed = text[:place] + character + text[place + 1 :]
    if changed != text:
        with pytest.raises(InvalidToken):
            Secret.parse(changed)


@given(made, st.integers(8, 63))
def test_swapped_characters_are_detected(secret: Secret, place: int) -> None:
    text = secret.text()
    changed = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    if changed != text:
        with pytest.raises(InvalidToken):
            Secret.parse(changed)


@given(st.text())
def test_invalid_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidToken) as caught:
        Secret.parse(text)
    assert len(text) < 12 or text not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:0], "it does not begin with perseid_"),
        (lambda text: text.upper(), "it does not begin with perseid_"),
        (lambda text: text[:-1], "it is too short"),
        (lambda text: text + text, "it is too long"),
        (lambda text: text[:20] + "-" + text[21:], "an invalid character"),
        (lambda text: text[:20] + "é" + text[21:], "an invalid character"),
        (lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"), "checksum"),
        (lambda text: text + "\n", "it is too long"),
    ],
)
def test_invalid_text_has_a_specific_message(change: object, words: str) -> None:
    text = Secret("abcdefgh", secrets.token_bytes(32)).text()
    with pytest.raises(InvalidToken, match=words):
        Secret.parse(change(text))  # type: ignore[operator]


def test_secret_out_of_range_is_refused() -> None:
    body = "perseid_abcdefgh" + "z" * 43
    with pytest.raises(InvalidToken, match="out of range"):
        Secret.parse(body + token_records._checksum(body))


def test_new_tokens_differ() -> None:
    found = [Secret.new(secrets.token_bytes) for _ in range(200)]
    assert len({secret.raw for secret in found}) == 200
    assert len({secret.id for secret in found}) == 200
    assert all(is_id(secret.id) for secret in found)


def test_new_token_uses_the_given_randomness() -> None:
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    assert Secret.new(random).raw == bytes(range(32))
    assert sum(asked) == 37


def test_secret_is_only_in_its_text() -> None:
    secret = Secret("abcdefgh", secrets.token_bytes(32))
    forms = [repr(secret), str(secret), f"{secret}", "%s" % secret, repr([secret])]  # noqa: UP031 - as logs do
    try:
        raise ValueError(secret)
    except ValueError:
        forms.append(traceback.format_exc())
    for shown in forms:
        assert "abcdefgh" in shown
        assert secret.raw.hex() not in shown
        assert repr(secret.raw) not in shown
        assert secret.text() not in shown


def test_stored_digest_is_the_hash_of_the_secret() -> None:
    secret, other = (Secret("abcdefgh", secrets.token_bytes(32)) for _ in range(2))
    assert secret.digest() == hashlib.sha256(secret.raw).digest()
    assert secret.matches(secret.digest())
    assert not secret.matches(other.digest())
    assert not secret.matches(b"")
    assert pickle.loads(pickle.dumps(secret)) == secret


@pytest.mark.parametrize(("name", "raw"), [("abc", bytes(32)), ("ABCDEFGH", bytes(32)), ("abcdefgh", bytes(31))])
def test_invalid_secret_is_rejected(name: str, raw: bytes) -> None:
    with pytest.raises(ValueError, match="8 characters"):
        Secret(name, raw)
