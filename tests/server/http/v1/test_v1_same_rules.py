"""The command line and the HTTP API apply the same rules."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.cli.program import Done
from tests.server.http.v1 import interfaces_history, interfaces_records  # noqa: F401 - they add their requests
from tests.server.http.v1.interfaces import (
    ANN,
    NAMES,
    PREFIXES,
    REQUESTS,
    WHO,
    Both,
    both_interfaces,
    check_same_advice,
    requests,
    step,
)
from tests.server.installations import ADMINISTRATOR

VALUES = st.lists(
    st.tuples(
        st.sampled_from([None, 1, 2, 300]),
        st.sampled_from(["URL", "DESC", "EMAIL"]),
        st.sampled_from(["https://example.org/", "x", ""]),
    ),
    max_size=3,
)
POLICIES = st.one_of(
    st.sampled_from(['purpose = "Maps"', 'who_may_list = "public"', 'case = "sensitive"', 'scheme = "cordra"', ""]),
    st.sampled_from(['profile = "pilin"', 'deletion = "tombstone"', 'required_types = ["URL"]']),
    st.sampled_from(["===", "who_may_list = 7"]),
)


def texts(values: list[tuple[int | None, str, str]]) -> list[str]:
    return [f"{'' if index is None else f'{index}:'}{type_}={data}" for index, type_, data in values]


def plains(values: list[tuple[int | None, str, str]]) -> list[dict[str, object]]:
    return [
        {"type": type_, "data": data, **({} if index is None else {"index": index})} for index, type_, data in values
    ]


def told(done: Done, plain: Any) -> None:
    """Compare explanations."""
    said = done.json
    assert (said["allowed"], said["reason"]) == (plain["allowed"], plain["reason"])
    assert (said["rule"], said["code"]) == (plain["rule"], plain["code"])
    assert bool(said["advice"]) == bool(plain["advice"])
    check_same_advice(said["advice"] or "", plain["advice"] or "")


@requests
def explaining() -> st.SearchStrategy[Both]:
    def of(kind: str, name: str, values: list[tuple[int | None, str, str]]) -> Both:
        wanted: dict[str, object] = {"command": kind, "handle": name}
        words = ["explain", kind, name, "--json"]
        if kind == "create":
            words += [word for text in texts(values) for word in ("--value", text)]
            wanted["values"] = plains(values)
        elif kind in ("set", "add"):
            values = values or [(None, "URL", "x")]
            words += texts(values)
            wanted["values"] = plains(values)
        elif kind == "remove":
            words.append("2")
            wanted["indexes"] = [2]
        elif kind == "transfer":
            words += ["--to", ANN]
            wanted["to"] = ANN
        return Both(words, "POST", "/explain", wanted, alike=told)

    kinds = ["create", "set", "add", "remove", "delete", "publish", "unpublish", "tombstone", "transfer"]
    return st.builds(of, st.sampled_from(kinds), NAMES, VALUES)


@requests
def adding_namespaces() -> st.SearchStrategy[Both]:
    def of(prefix: str, profile: str) -> Both:
        words = ["namespace", "add", prefix, "--profile", profile]
        return Both(words, "POST", "/namespaces", {"prefix": prefix, "profile": profile})

    return st.builds(of, PREFIXES, st.sampled_from(["free", "pilin", "exact", "loud"]))


@requests
def changing_policies() -> st.SearchStrategy[Both]:
    def of(prefix: str, text: str) -> Both:
        words = ["namespace", "policy", prefix, "--file", "-", "--json"]
        path = f"/namespaces/{step(prefix)}/policy"
        return Both(words, "PUT", path, {"policy": text}, text.encode(), same_keys)

    def same_keys(done: Done, plain: Any) -> None:
        assert done.json["changed"] == plain["changed"]

    return st.builds(of, PREFIXES, POLICIES)


@requests
def showing_namespaces() -> st.SearchStrategy[Both]:
    def shown(done: Done, plain: Any) -> None:
        said = done.json
        assert (said["prefix"], said["scheme"], said["case"]) == (plain["prefix"], plain["scheme"], plain["case"])

    def of(prefix: str) -> Both:
        return Both(["namespace", "show", prefix, "--json"], "GET", f"/namespaces/{step(prefix)}", alike=shown)

    def listed(done: Done, plain: Any) -> None:
        prefixes = [json.loads(line)["prefix"] for line in done.out.splitlines()]
        assert sorted(prefixes) == sorted(each["prefix"] for each in plain["namespaces"])

    return st.one_of(
        st.builds(of, PREFIXES), st.just(Both(["namespace", "list", "--json"], "GET", "/namespaces", alike=listed))
    )


@requests
def types() -> st.SearchStrategy[Both]:
    def add(name: str, pattern: str, example: str) -> Both:
        words = ["type", "add", name, "--definition", "x", "--pattern", pattern, "--example", example]
        plain = {"handle": name, "description": "x", "pattern": pattern, "example": example}
        return Both(words, "POST", "/types", plain)

    def show(name: str) -> Both:
        return Both(["type", "show", name], "GET", f"/types/{step(name)}")

    adding = st.builds(add, NAMES, st.sampled_from(["a+", "(", "(a)\\1"]), st.sampled_from(["a", "b"]))
    return st.one_of(adding, st.builds(show, NAMES))


@requests
def citing() -> st.SearchStrategy[Both]:
    def of(name: str, at: str | None) -> Both:
        words = ["cite", name, "--json", "--resolver", "https://hdl.example.org"]
        path = f"/handles/{step(name)}/citation"
        if at is not None:
            words, path = [*words, "--at", at], f"{path}?at={at}"
        return Both(words, "GET", path, alike=same)

    def same(done: Done, plain: Any) -> None:
        said = done.json
        for each in ("citation", "hdl", "http", "title"):
            assert said.get(each) == plain.get(each)

    return st.builds(of, NAMES, st.sampled_from([None, "30", "0", "x", "99999"]))


QUICKLY: Final = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without looking for the shortest failure: every try copies two installations."""


@settings(deadline=None, max_examples=15, phases=QUICKLY)
@given(st.lists(st.tuples(st.one_of([made() for made in REQUESTS]), WHO), min_size=3, max_size=12))
def test_refusals_are_the_same_on_both_interfaces(asked: list[tuple[Both, str]]) -> None:
    with both_interfaces() as both:
        for request, identity in asked:
            both.ask(request, identity)


@pytest.mark.parametrize("made", REQUESTS, ids=lambda made: made.__name__)
def test_every_kind_of_request_works_on_both_interfaces(made: Callable[[], st.SearchStrategy[Both]]) -> None:
    """Some requests of each kind, as the administrator."""

    @settings(deadline=None, max_examples=2, phases=QUICKLY)
    @given(st.lists(made(), min_size=5, max_size=8))
    def ask(asked: list[Both]) -> None:
        with both_interfaces() as both:
            for request in asked:
                both.ask(request, ADMINISTRATOR)

    ask()
