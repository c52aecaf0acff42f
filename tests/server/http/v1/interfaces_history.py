"""Requests about history, searches and jobs, for both interfaces: see `interfaces`."""

import json
from typing import Any
from urllib.parse import urlencode

from hypothesis import strategies as st

from tests.cli.program import Done
from tests.server.http.v1.interfaces import NAMES, PREFIXES, Both, requests, step


def lines(done: Done) -> list[Any]:
    """Parse the output of a command, one JSON document per line."""
    return [json.loads(line) for line in done.out.splitlines()]


@requests
def the_past() -> st.SearchStrategy[Both]:
    def history(name: str, limit: int) -> Both:
        words = ["history", name, "--limit", str(limit), "--json"]
        return Both(words, "GET", f"/handles/{step(name)}/history?limit={limit}", alike=same_versions)

    def same_versions(done: Done, plain: Any) -> None:
        assert done.json["handle"] == plain["handle"]
        told = [[(each["seq"], each["action"]) for each in said["versions"]] for said in (done.json, plain)]
        assert told[0] == told[1]

    def log(since: str) -> Both:
        return Both(["log", "--since", since, "--json"], "GET", f"/log?since={since}&limit=1000", alike=same_entries)

    def same_entries(done: Done, plain: Any) -> None:
        told = [[(each["seq"], each["handle"]) for each in said] for said in (lines(done), plain["entries"])]
        assert told[0] == told[1]

    moments = st.sampled_from(["0", "20", "50", "99999", "yesterday", "2999-01-01T00:00:00Z"])
    return st.one_of(st.builds(history, NAMES, st.sampled_from([1, 5])), st.builds(log, moments))


@requests
def statistics() -> st.SearchStrategy[Both]:
    def of(prefix: str | None, since: str, by: str) -> Both:
        words = ["statistics", *([] if prefix is None else [prefix]), "--from", since, "--by", by, "--json"]
        query = urlencode({"since": since, "by": by} | ({} if prefix is None else {"namespace": prefix}))
        return Both(words, "GET", f"/statistics?{query}", alike=same_rows)

    def wanted(prefix: str) -> Both:
        words = ["statistics", prefix, "--wanted", "--json"]
        return Both(words, "GET", f"/statistics/wanted?{urlencode({'namespace': prefix})}", alike=same)

    def same_rows(done: Done, plain: Any) -> None:
        assert [row["resolutions"] for row in done.json["rows"]] == [row["resolutions"] for row in plain["rows"]]

    def same(done: Done, plain: Any) -> None:
        assert done.json == plain

    moments = st.sampled_from(["2026-11-01", "2026-11-15T10:00:00+01:00", "2999-01-01", "yesterday"])
    periods = st.sampled_from(["day", "hour", "namespace", "week"])
    return st.one_of(st.builds(of, st.one_of(st.none(), PREFIXES), moments, periods), st.builds(wanted, PREFIXES))


@requests
def proving() -> st.SearchStrategy[Both]:
    def of(name: str, at: str | None, everything: bool) -> Both:
        words = ["prove", name, "--json"] + ([] if at is None else ["--at", at]) + ["--everything"] * everything
        query = ("" if at is None else f"at={at}&") + f"everything={json.dumps(everything)}"
        return Both(words, "GET", f"/handles/{step(name)}/proof?{query}", alike=same)

    def same(done: Done, plain: Any) -> None:
        for member in ("handle", "seq", "format"):
            assert done.json[member] == plain[member]

    return st.builds(of, NAMES, st.sampled_from([None, "0", "40", "99999", "x"]), st.booleans())


@requests
def finding() -> st.SearchStrategy[Both]:
    def of(asked: dict[str, str]) -> Both:
        options = [word for name, text in asked.items() for word in (f"--{name}", text)]
        query = urlencode({"changed_since" if name == "changed-since" else name: text for name, text in asked.items()})
        return Both(["find", *options, "--json"], "GET", f"/find?{query}&limit=1000", alike=same)

    def same(done: Done, plain: Any) -> None:
        assert [each["handle"] for each in lines(done)] == [each["handle"] for each in plain["results"]]

    criteria = {
        "url": st.sampled_from(["https://example.org/*", "https://example.org/1", "*example*", "ftp:", "x*y"]),
        "host": st.sampled_from(["example.org", "EXAMPLE.ORG", "other.example", "a b"]),
        "type": st.sampled_from(["URL", "EMAIL", "URL.", "x"]),
        "value": st.sampled_from(["keeper@example.org", "x"]),
        "owner": st.sampled_from(["0.NA/12345", "12345/ann", "12345/nobody"]),
        "prefix": PREFIXES,
        "changed-since": st.sampled_from(["0", "50", "99999", "x"]),
    }
    one = st.sampled_from(sorted(criteria)).flatmap(lambda name: st.fixed_dictionaries({name: criteria[name]}))
    return st.builds(of, st.one_of(one, one.flatmap(lambda first: one.map(lambda second: {**first, **second}))))


@requests
def moving() -> st.SearchStrategy[Both]:
    def preview(url: str, to: str) -> Both:
        words = ["rewrite", "--url", url, "--to", to, "--dry-run", "--json"]
        return Both(words, "GET", f"/rewrites/preview?{urlencode({'url': url, 'to': to, 'limit': 1000})}", alike=same)

    def same(done: Done, plain: Any) -> None:
        told = [each["handle"] for each in lines(done) if "handle" in each]
        assert told == [each["handle"] for each in plain["handles"]]

    def move(prefix: str) -> Both:
        words = ["rewrite", "--url", "https://example.org/*", "--to", "https://example.org/x/*", "--prefix", prefix]
        plain = {"url": "https://example.org/*", "to": "https://example.org/x/*", "prefix": prefix}
        return Both([*words, "--yes"], "POST", "/rewrites", plain)

    def operation(what: str, name: str) -> Both:
        if what == "undo":
            return Both(["undo", name, "--yes"], "POST", f"/jobs/{name}/undo", {})
        if what == "resume":
            return Both(["jobs", "resume", name], "POST", f"/jobs/{name}/resume")
        if what == "cancel":
            return Both(["jobs", "cancel", name], "POST", f"/jobs/{name}/cancel")
        return Both(["jobs", "show", name], "GET", f"/jobs/{name}")

    urls = st.sampled_from(["https://example.org/*", "https://example.org/7", "https://other.example/*", "*", "x"])
    targets = st.sampled_from(["https://new.example/*", "https://new.example/", "new.example/*"])
    asked, names = (
        st.sampled_from(["undo", "resume", "cancel", "show"]),
        st.sampled_from(["last", "0123456789abcdef", "x"]),
    )
    moves = st.builds(move, st.sampled_from(["12345", "1/2"]))
    return st.one_of(st.builds(preview, urls, targets), moves, st.builds(operation, asked, names))
