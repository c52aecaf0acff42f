"""Requests about records, their lifecycle and tokens, for both interfaces: see `interfaces`.

Requests that create random handles or tokens differ on both sides, so they are kept apart, in `AT_RANDOM`.
"""

import json
from typing import Any, Final
from urllib.parse import urlencode

from hypothesis import strategies as st

from perseid.schema.access import MAX_RIGHTS
from tests.cli.program import Done
from tests.server.http.v1.interfaces import ANN, NAMES, PREFIXES, Both, requests, step
from tests.server.installations import ADMINISTRATOR

Written = tuple[int | None, str, str]

VALUES: Final = st.lists(
    st.tuples(
        st.sampled_from([None, None, 1, 2, 7]),
        st.sampled_from(["URL", "DESC", "EMAIL", "HS_ADMIN"]),
        st.sampled_from(["https://example.org/", "x", "", ADMINISTRATOR, "300:12345/ann:read_value"]),
    ),
    max_size=3,
)
OTHERS: Final = NAMES.filter(lambda name: name != "0.NA/12345")
"""Handles except the one with the key of the caller, which the command line does not need."""
PARTIES: Final = st.sampled_from([ANN, ADMINISTRATOR, "1:12345/ann", "300:54321/x", "300:12345/nobody", "ann", "x:y"])
COUNTS: Final = st.sampled_from([1, 1, 2, 0, 1_000])


def texts(values: list[Written]) -> list[str]:
    return [f"{'' if index is None else f'{index}:'}{type_}={data}" for index, type_, data in values]


def plains(values: list[Written]) -> list[dict[str, object]]:
    return [
        {"type": type_, "data": data, **({} if index is None else {"index": index})} for index, type_, data in values
    ]


def same(done: Done, plain: Any) -> None:
    """Same handle, same entry."""
    assert (done.json["handle"], done.json["seq"]) == (plain["handle"], plain["seq"])


@requests
def creating() -> st.SearchStrategy[Both]:
    def of(name: str, values: list[Written], again: bool) -> Both:
        words = ["create", name, "--json", *["--reuse-deleted"] * again]
        words += [word for text in texts(values) for word in ("--value", text)]
        return Both(
            words, "POST", "/handles", {"handle": name, "values": plains(values), "reuse_deleted": again}, alike=same
        )

    return st.builds(of, NAMES, VALUES, st.booleans())


@requests
def changing() -> st.SearchStrategy[Both]:
    def put(kind: str, name: str, values: list[Written], keep_past: bool) -> Both:
        path, plain = f"/handles/{step(name)}/values", {"values": plains(values)}
        if kind == "add":
            return Both(["add", name, *texts(values), "--json"], "POST", path, plain, alike=same)
        words = ["set", name, *texts(values), "--json", *["--keep-history"] * keep_past]
        return Both(words, "PUT", path, {**plain, "keep_history": keep_past}, alike=same)

    def replace(name: str, values: list[Written]) -> Both:
        found = [{**plain, "index": index} for index, plain in enumerate(plains(values), 1)]
        found = [each for each in found if each["type"] != "HS_ADMIN"]
        value = {"handle": "0.NA/12345", "index": 300, "permissions": "111111111111"}
        found.append({"index": 100, "type": "HS_ADMIN", "data": {"format": "admin", "value": value}})
        words = ["set", name, "--from", "-", "--json"]
        return Both(words, "PUT", f"/handles/{step(name)}", {"values": found}, json.dumps(found).encode(), same)

    def remove(name: str, indexes: list[int]) -> Both:
        query = urlencode([("index", index) for index in indexes])
        words = ["remove", name, *map(str, indexes), "--json"]
        return Both(words, "DELETE", f"/handles/{step(name)}/values?{query}", alike=same)

    indexes = st.lists(st.sampled_from([0, 1, 2, 3, 9, 100]), max_size=2)
    return st.one_of(
        st.builds(put, st.sampled_from(["add", "set"]), NAMES, VALUES, st.booleans()),
        st.builds(replace, OTHERS, VALUES),
        st.builds(remove, NAMES, indexes),
    )


@requests
def living() -> st.SearchStrategy[Both]:
    def of(kind: str, name: str) -> Both:
        path = f"/handles/{step(name)}"
        if kind == "delete":
            return Both(["delete", name, "--json"], "DELETE", path, alike=same)
        if kind == "revive":
            return Both(["tombstone", name, "--undo", "--json"], "POST", f"{path}/revive", alike=same)
        return Both([kind, name, "--json"], "POST", f"{path}/{kind}", alike=same)

    def tombstone(name: str, reason: str, instead: str | None) -> Both:
        words = ["tombstone", name, "--reason", reason, "--json"]
        words += [] if instead is None else ["--replaced-by", instead]
        plain = {"reason": reason, "replaced_by": instead}
        return Both(words, "POST", f"/handles/{step(name)}/tombstone", plain, alike=same)

    def transfer(name: str, to: str) -> Both:
        words = ["transfer", name, "--to", to, "--json"]
        return Both(words, "POST", f"/handles/{step(name)}/transfer", {"to": to}, alike=same)

    named = NAMES.filter(lambda name: "/" in name.removesuffix("/"))  # a prefix alone means all of its names there
    return st.one_of(
        st.builds(of, st.sampled_from(["publish", "revive"]), NAMES),
        st.builds(of, st.sampled_from(["delete", "unpublish"]), OTHERS),
        st.builds(tombstone, NAMES, st.sampled_from(["It is gone", " "]), st.one_of(st.none(), st.just(""), NAMES)),
        st.builds(transfer, named, PARTIES),
    )


def handed(done: Done, plain: Any) -> None:
    """Same number of handles, by a complete job."""
    assert (done.json["done"], done.json["state"]) == (plain["done"], "done")


@requests
def handing_over_many() -> st.SearchStrategy[Both]:
    def of(where: str, to: str, derived: bool) -> Both:
        words = ["transfer", where, "--to", to, "--yes", "--json", *["--derived"] * derived]
        return Both(words, "POST", "/transfers", {"where": where, "to": to, "derived": derived}, alike=handed)

    some = st.sampled_from(["12345/n1*", "12345/N4…", "12345/zz...", "12345/", "12345"])
    none = st.sampled_from(["54321", "54321/x*", "0.NA/*", "9 9", "*", "12345.7/*", "12345/\u202e*"])
    return st.builds(of, st.one_of(some, none), PARTIES, st.booleans())


@requests
def linking() -> st.SearchStrategy[Both]:
    def version(one: str, other: str) -> Both:
        words, plain = ["link", "version", one, other, "--json"], {"work": one, "version": other}
        return Both(words, "POST", "/links/versions", plain, alike=linked)

    def metadata(one: str, other: str) -> Both:
        words, plain = ["link", "metadata", one, other, "--json"], {"resource": one, "metadata": other}
        return Both(words, "POST", "/links/metadata", plain, alike=linked)

    def linked(done: Done, plain: Any) -> None:
        assert (done.json["handles"], done.json["seq"]) == (plain["handles"], plain["seq"])

    def alias(name: str, of: str) -> Both:
        words = ["create", name, "--value", f"HS_ALIAS={of}", "--json"]
        return Both(words, "POST", "/aliases", {"handle": name, "of": of}, alike=same)

    targets = st.sampled_from(["12345/n0", "12345/none", "54321/x"])
    return st.one_of(
        st.builds(version, NAMES, NAMES), st.builds(metadata, NAMES, NAMES), st.builds(alias, NAMES, targets)
    )


@requests
def resolving() -> st.SearchStrategy[Both]:
    def of(name: str, asked: dict[str, str], private: bool, follow: bool) -> Both:
        words = ["resolve", name, "--json", *["--private"] * private, *["--follow"] * follow]
        words += [word for option, text in asked.items() for word in (f"--{option}", text)]
        query = urlencode({**asked, "private": json.dumps(private), "follow": json.dumps(follow)})
        return Both(words, "GET", f"/handles/{step(name)}?{query}", alike=resolved)

    def resolved(done: Done, plain: Any) -> None:
        told = [[(each["index"], each["type"], each["data"]) for each in said["values"]] for said in (done.json, plain)]
        assert told[0] == told[1]
        assert done.json["state"] == plain["state"]
        assert done.json.get("aliases", []) == plain.get("aliases", [])
        assert (done.json.get("as_of"), done.json["seq"]) == (plain.get("as_of"), plain["seq"])

    asked = st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["URL", "NOTE", "HS_ADMIN", "NONE"]),
            "index": st.sampled_from(["1", "9", "77"]),
            "at": st.sampled_from(["10", "57", "0", "99999", "soon", "2999-01-01T00:00:00Z"]),
        },
    )
    return st.builds(of, NAMES, asked, st.booleans(), st.booleans())


@requests
def unknown_tokens() -> st.SearchStrategy[Both]:
    def of(kind: str, name: str) -> Both:
        return Both(["token", kind, name], "GET" if kind == "show" else "DELETE", f"/tokens/{step(name)}")

    return st.builds(of, st.sampled_from(["show", "revoke"]), st.sampled_from(["aaaaaaaa", "a", "A/b", "é"]))


def minting() -> st.SearchStrategy[Both]:
    """New handles, which differ per interface."""

    def as_many(done: Done, plain: Any) -> None:
        assert len(done.out.splitlines()) == len(plain["handles"]) + len(plain.get("metadata", []))

    def mint(prefix: str, values: list[Written], count: int, owner: str | None, hidden: bool, pairs: bool) -> Both:
        words = ["mint", prefix, "--count", str(count), *["--unpublished"] * hidden, *["--with-metadata"] * pairs]
        words += [word for text in texts(values) for word in ("--value", text)]
        words += [] if owner is None else ["--owner", owner]
        plain = {"prefix": prefix, "values": plains(values), "count": count, "owner": owner, "published": not hidden}
        return Both(words, "POST", "/mint", {**plain, "metadata": [] if pairs else None}, alike=as_many)

    def reserve(prefix: str, count: int, owner: str | None) -> Both:
        words = ["mint", prefix, "--reserve"] if "/" in prefix else ["reserve", prefix]
        words += ["--count", str(count), *([] if owner is None else ["--owner", owner])]
        return Both(words, "POST", "/reserve", {"prefix": prefix, "count": count, "owner": owner}, alike=as_many)

    def reserve_chosen(names: list[str], owner: str | None) -> Both:
        words = ["reserve", *names, *([] if owner is None else ["--owner", owner])]
        return Both(words, "POST", "/reserve", {"handles": names, "owner": owner}, alike=as_many)

    where = st.one_of(
        PREFIXES, st.just("12345"), st.sampled_from(["12345/report-", "12345/\u202e", "12345/" + "x" * 3_000])
    )
    owners = st.one_of(st.none(), PARTIES)
    few = COUNTS.map(lambda count: min(count, 3))
    return st.one_of(
        st.builds(mint, where, VALUES, few, owners, st.booleans(), st.booleans()),
        st.builds(reserve, where, COUNTS, owners),
        st.builds(reserve_chosen, st.lists(NAMES.filter(lambda name: "/" in name), min_size=1, max_size=2), owners),
    )


@requests
def granting() -> st.SearchStrategy[Both]:
    """Rights and users; the rights of the administrator stay."""

    def change(kind: str, who: str, rights: list[str], on: str) -> Both:
        path = "/grants" if kind == "grant" else "/revocations"
        return Both(
            [kind, who, *rights, "--on", on, "--json"],
            "POST",
            path,
            {"identity": who, "rights": rights, "on": on},
            alike=lambda done, plain: check_equal(done.json, plain),
        )

    def show(on: str) -> Both:
        path = f"/access?on={step(on)}"
        return Both(["access", on, "--json"], "GET", path, alike=lambda done, plain: check_equal(done.json, plain))

    def disable(name: str) -> Both:
        words, path = ["user", "disable", name, "--json"], f"/users/{step(name)}/disable"
        return Both(words, "POST", path, {}, alike=lambda done, plain: check_equal(done.json, plain))

    who = st.sampled_from(["12345/n1", "1:12345/n1", "300:54321/x", "54321/x", "12345/nobody", "300:12345/nobody"])
    names = st.sampled_from(["editor", "minter", "reader", "add_value", "add_handle", "boss"])
    rights = st.one_of(st.lists(names, min_size=1), st.lists(names, min_size=MAX_RIGHTS, max_size=MAX_RIGHTS + 3))
    where = st.sampled_from(["12345", "54321", "12345/n0", "12345/new", "12345/private", "12345/none", "1/2"])
    return st.one_of(
        st.builds(change, st.sampled_from(["grant", "revoke"]), who, rights, where),
        st.builds(show, where),
        st.builds(disable, st.sampled_from(["12345/n0", "12345/none", "54321/x"])),
    )


def check_equal(printed: object, returned: object) -> None:
    assert printed == returned


def making_tokens() -> st.SearchStrategy[Both]:
    """Tokens, whose ids differ per interface."""

    def of(may: list[str], namespaces: list[str], everywhere: bool, days: int, label: str) -> Both:
        words = ["token", "create", "--expires-in", f"{days}d", "--label", label, "--json"]
        words += [word for each in may for word in ("--scope", each)]
        words += [word for each in namespaces for word in ("--namespace", each)] + ["--all-namespaces"] * everywhere
        plain = {
            "scopes": may,
            "namespaces": namespaces,
            "all_namespaces": everywhere,
            "expires_in": f"{days}d",
            "label": label,
        }
        return Both(words, "POST", "/tokens", plain)

    return st.builds(
        of,
        st.lists(st.sampled_from(["mint", "admin", "read"]), min_size=1, max_size=2),
        st.lists(st.sampled_from(["12345", "54321", "12345.*"]), max_size=2),
        st.booleans(),
        st.sampled_from([1, 90, 400, 401]),
        st.sampled_from(["", "the catalogue", "a\tb"]),
    )


AT_RANDOM: Final = (minting, making_tokens)
