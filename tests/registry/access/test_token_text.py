"""The text of a token: read and written without loss, recognisable, and told by nothing that prints it by mistake."""

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
def test_what_is_written_is_read_back(secret: Secret) -> None:
    text = secret.text()
    assert Secret.parse(text) == secret
    assert re.fullmatch(PATTERN, text)
    assert len(text) == 65


@pytest.mark.parametrize("raw", EDGES)
def test_the_edges(raw: bytes) -> None:
    secret = Secret("aaaaaaaa", raw)
    assert Secret.parse(secret.text()) == secret


@given(made, st.integers(0, 64), st.characters(codec="ascii"))
def test_every_slip_of_one_character_is_noticed(secret: Secret, place: int, character: str) -> None:
    text = secret.text()
    changed = text[:place] + character + text[place + 1 :]
    if changed != text:
        with pytest.raises(InvalidToken):
            Secret.parse(changed)


@given(made, st.integers(8, 63))
def test_two_neighbours_that_changed_places_are_noticed(secret: Secret, place: int) -> None:
    text = secret.text()
    changed = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    if changed != text:
        with pytest.raises(InvalidToken):
            Secret.parse(changed)


@given(st.text())
def test_any_other_text_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(InvalidToken) as caught:
        Secret.parse(text)
    assert len(text) < 12 or text not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:0], "begins with perseid_"),
        (lambda text: text.upper(), "begins with perseid_"),
        (lambda text: text[:-1], "was it cut"),
        (lambda text: text + text, "doubled"),
        (lambda text: text[:20] + "-" + text[21:], "a character that no token has"),
        (lambda text: text[:20] + "é" + text[21:], "a character that no token has"),
        (lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"), "mistyped"),
        (lambda text: text + "\n", "more"),
    ],
)
def test_what_is_said_of_it(change: object, words: str) -> None:
    text = Secret("abcdefgh", secrets.token_bytes(32)).text()
    with pytest.raises(InvalidToken, match=words):
        Secret.parse(change(text))  # type: ignore[operator]


def test_a_number_that_is_too_large_is_no_secret() -> None:
    body = "perseid_abcdefgh" + "z" * 43
    with pytest.raises(InvalidToken, match="too large"):
        Secret.parse(body + token_records._checksum(body))


def test_new_ones_differ_in_everything() -> None:
    found = [Secret.new(secrets.token_bytes) for _ in range(200)]
    assert len({secret.raw for secret in found}) == 200
    assert len({secret.id for secret in found}) == 200
    assert all(is_id(secret.id) for secret in found)


def test_it_asks_for_its_randomness() -> None:
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    assert Secret.new(random).raw == bytes(range(32))
    assert sum(asked) == 37


def test_a_secret_is_shown_by_nothing_but_its_text() -> None:
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


def test_what_is_kept_is_the_hash_of_the_secret() -> None:
    secret, other = (Secret("abcdefgh", secrets.token_bytes(32)) for _ in range(2))
    assert secret.digest() == hashlib.sha256(secret.raw).digest()
    assert secret.matches(secret.digest())
    assert not secret.matches(other.digest())
    assert not secret.matches(b"")
    assert pickle.loads(pickle.dumps(secret)) == secret


@pytest.mark.parametrize(("name", "raw"), [("abc", bytes(32)), ("ABCDEFGH", bytes(32)), ("abcdefgh", bytes(31))])
def test_what_can_be_no_token(name: str, raw: bytes) -> None:
    with pytest.raises(ValueError, match="eight characters"):
        Secret(name, raw)
