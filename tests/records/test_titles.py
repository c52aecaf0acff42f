"""Titles: which values are titles, and what their words are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.titles import (
    MAX_TITLE,
    MAX_WORD,
    MAX_WORDS,
    MIN_WORD,
    find_words,
    read_line,
    select_titles,
    title_rank,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Authority Metadata", ["authority", "metadata"]),
        ("a Map of Åre, 2nd ed.", ["map", "of", "are", "2nd", "ed"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("l'\u00e9t\u00e9 / l'e\u0301te\u0301", ["ete", "ete"]),
        ("ﬁle no_1 x-ray", ["file", "no", "ray"]),
        ("co\u00adoperate", ["cooperate"]),
        ("Война и мир", ["воина", "мир"]),
        ("हिन्दी पुस्तक", ["हिनदी", "पुसतक"]),
        ("東京の地図", ["東京の地図"]),
        ("\u1c90\u1c91 new letters", ["\u1c90\u1c91", "new", "letters"]),
        ("\ud800 lone", ["lone"]),
        ("! ? a", []),
    ],
)
def test_words_are_without_case_accents_and_punctuation(text: str, words: list[str]) -> None:
    assert find_words(text) == words


@given(st.text(max_size=60))
def test_words_are_found_again_in_any_case_and_normal_form(text: str) -> None:
    words = find_words(text)
    assert find_words(" ".join(words)) == words
    assert all(MIN_WORD <= len(word) <= MAX_WORD and " " not in word for word in words)


def test_long_titles_and_words_are_limited() -> None:
    assert find_words("ab " * (MAX_WORDS + 1)) == ["ab"] * MAX_WORDS
    assert find_words("a" * (MAX_WORD + 1)) == ["a" * MAX_WORD]
    assert find_words("é" * (MAX_WORD + 1)) == ["e" * MAX_WORD]
    assert find_words(" " * MAX_TITLE + "late") == []


@pytest.mark.parametrize(
    ("type_", "rank"),
    [
        *[("title", 0), ("dc.title", 0), ("dcterms.title", 0), ("12345/title", 0), ("10320/desc", 1), ("abstract", 3)],
        *[("subtitle", None), ("title.x", None), ("url", None), ("hs_admin", None)],
    ],
)
def test_types_of_titles_have_a_precedence(type_: str, rank: int | None) -> None:
    assert title_rank(type_.encode()) == rank


def test_description_is_a_title_where_no_title_is_public() -> None:
    assert select_titles([(1, True, "description"), (0, True, "title"), (0, False, "private")]) == ["title", "private"]
    assert select_titles([(1, True, "description"), (0, False, "private"), (2, True, "more")]) == [
        "private",
        "description",
    ]
    assert select_titles([(3, False, "abstract"), (1, False, "description")]) == ["description", "abstract"]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers())))
def test_private_titles_hide_no_public_one(candidates: list[tuple[int, bool, int]]) -> None:
    public = select_titles([each for each in candidates if each[1]])
    everything = select_titles(candidates)
    assert [each for each in public if everything.count(each) < public.count(each)] == []


def test_data_without_visible_text_is_no_title() -> None:
    assert read_line(b" a\r\nb ") == "a b"
    assert [read_line(data) for data in (b"", b" \t", b"\xff", "\u200e".encode())] == [None] * 4
