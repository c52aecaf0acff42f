"""Namespaces in the console: create, change the policy after a preview, retire and remove; and types of values."""

import re
import tomllib
from typing import Any

import pytest

from perseid.client.api_exchange import ApiRequest
from perseid.registry.queries.namespaces import ChangePolicy
from perseid.server.http.console.policy_form import read_rules, to_text
from perseid.server.http.console.requests import ConsoleApi
from perseid.server.http.messages import Parameters
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness
from tests.server.installations import OPERATOR

PAGE = "/console/namespaces/12345"
SCRIPT = "<script>alert(1)</script>"


def add_namespace(user: ConsoleUser, prefix: str, **fields: str) -> None:
    user.get("/console/namespaces")
    user.submit("/namespaces", prefix=prefix, profile="free", **fields)


def remove(user: ConsoleUser, retire: str | None = None) -> None:
    """Confirm one of two forms with the same action."""
    form = next(form for form in user.forms("/remove") if form.fields.get("retire") == retire)
    user.post(form.action, form.fields)


# Namespaces


def test_namespace_is_created(user: ConsoleUser) -> None:
    add_namespace(user, "12345.1", purpose="For <b>maps</b>")
    assert "The namespace was created." in user.text
    assert user.path.startswith("/console/namespaces/12345.1")
    assert b"For &lt;b&gt;maps" in user.page.body
    user.get("/console/namespaces")
    assert "12345.1" in user.text
    assert b"<b>maps" not in user.page.body


def test_namespace_has_the_simplest_policy_unless_another_is_chosen(user: ConsoleUser) -> None:
    user.get("/console/namespaces")
    assert user.form("/namespaces").fields["profile"] == "free"
    user.submit("/namespaces", prefix=SCRIPT, profile="cordra")
    assert user.form("/namespaces").fields["profile"] == "cordra"


def test_empty_namespace_leads_to_its_first_identifier(user: ConsoleUser) -> None:
    add_namespace(user, "12345.1")
    user.get("/console/records?prefix=12345.1")
    assert b'<a href="/console/new?prefix=12345.1">Create the first one</a>' in user.page.body


def test_invalid_namespace_is_refused_and_kept_in_the_form(user: ConsoleUser) -> None:
    add_namespace(user, SCRIPT, purpose="For maps")
    assert user.alert
    assert user.form("/namespaces").fields["prefix"] == SCRIPT
    assert user.form("/namespaces").fields["purpose"] == "For maps"
    assert SCRIPT.encode() not in user.page.body


def test_existing_namespace_is_refused(user: ConsoleUser) -> None:
    add_namespace(user, "12345")
    assert "already exists" in user.alert


def test_missing_namespace_is_not_found(user: ConsoleUser) -> None:
    user.get("/console/namespaces/99999")
    assert user.page.status >= 400
    user.get("/console/namespaces/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert user.page.status >= 400
    assert SCRIPT.encode() not in user.page.body


def test_policy_is_changed_after_a_preview(user: ConsoleUser) -> None:
    user.get(PAGE)
    assert user.form("/policy").fields["rule.purpose"] != "For maps"
    user.submit("/policy", **{"rule.purpose": "For maps"})
    assert "For maps" in user.text
    assert "Change the policy of 12345" in user.text
    preview = user.form("/policy").fields
    user.get(PAGE)
    assert "For maps" not in user.text, "nothing is saved yet"
    user.post(f"{PAGE}/policy", preview | {"save": "yes"})
    assert "The policy was saved." in user.text
    assert user.form("/policy").fields["rule.purpose"] == "For maps"


def test_unchanged_policy_has_nothing_to_save(user: ConsoleUser) -> None:
    user.get(PAGE)
    user.submit("/policy")
    assert "Nothing changes." in user.text
    assert not user.has_form("/policy")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("required_types", f'URL\n" {SCRIPT}\u202e'),
        ("scheme_options", "version"),
        ("scheme", "nonsense"),
        ("deletion", "sometimes"),
        ("retired", "maybe"),
        ("max_ahead", "-1"),
    ],
)
def test_invalid_rule_is_refused_and_kept_in_the_form(user: ConsoleUser, rule: str, text: str) -> None:
    user.get(PAGE)
    fields = user.form("/policy").fields
    assert f"rule.{rule}" in fields, list(fields)
    user.submit("/policy", save="yes", **{f"rule.{rule}": text})
    assert user.alert
    if rule not in ("deletion", "retired"):  # choices of a list
        assert user.form("/policy").fields[f"rule.{rule}"] == text
    assert SCRIPT.encode() not in user.page.body
    user.get(PAGE)
    assert user.form("/policy").fields | {"csrf": fields["csrf"]} == fields, "nothing is saved"


def test_groups_of_rules_show_their_settings_and_open_for_changes(user: ConsoleUser) -> None:
    """Without a script: the groups are closed, except for those with a change that was refused."""
    user.get(PAGE)
    groups = re.findall(r'<details class="rules"( open)?><summary>(.*?)</summary>', user.page.body.decode())
    assert len(groups) == 8
    assert not any(is_open for is_open, _ in groups)
    assert "Milliseconds ahead of the clock: <bdi>3600000</bdi>" in groups[1][1]
    assert "Never ahead of the clock" not in groups[1][1], "what is off"
    user.submit("/policy", **{"rule.max_ahead": "a day"})
    groups = re.findall(r'<details class="rules"( open)?><summary>', user.page.body.decode())
    assert [number for number, is_open in enumerate(groups) if is_open] == [1]


def test_invalid_rule_is_refused_in_the_preview(user: ConsoleUser) -> None:
    user.get(PAGE)
    user.submit("/policy", **{"rule.max_ahead": "a day"})
    assert user.page.status == 422
    assert user.alert.startswith("Invalid input Milliseconds ahead of the clock: expected an integer")
    assert user.form("/policy").fields["rule.max_ahead"] == "a day"
    refused = {
        "scheme": ("pylin", "pylin' cannot be used here"),
        "default_ttl": ("-1", "expected an integer from 0 to 2,147,483,647"),
        "url_schemes": ("htp", "did you mean http?"),
    }
    for rule, (text, words) in refused.items():
        user.get(PAGE)
        user.submit("/policy", **{f"rule.{rule}": text})
        assert words in user.alert
        assert "not a string" not in user.alert


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("purpose", 'Maps "and"\n\nretired = true'),
        ("required_types", "URL\nTITLE"),
        ("default_administrators", "300:0.NA/{prefix}"),
        ("retired", "yes"),
        ("who_may_list", "public"),
        ("default_ttl", "60"),
    ],
)
def test_rule_is_written_without_quotes(user: ConsoleUser, rule: str, text: str) -> None:
    user.get(PAGE)
    before = user.form("/policy").fields[f"rule.{rule}"]
    for wanted in (text, before):
        user.submit("/policy", **{f"rule.{rule}": wanted.replace("\n", "\r\n")})  # as browsers send it
        user.submit("/policy", save="yes")
        assert "The policy was saved." in user.text
        assert user.form("/policy").fields[f"rule.{rule}"] == wanted


def test_options_of_a_scheme_are_lines() -> None:
    stored = {"alphabet": "abc", "flag": True, "length": 4, "odd": "4", "quoted": '"x'}
    text = to_text(stored)
    assert text.splitlines() == ["alphabet = abc", "flag = true", "length = 4", 'odd = "4"', 'quoted = "\\"x"']
    rules = read_rules(Parameters((("rule.scheme_options", text),)), {})
    (rule,) = [each for each in rules if each.name == "scheme_options"]
    assert tomllib.loads(rule.to_toml()) == {"scheme_options": stored}


def test_each_rule_is_explained(user: ConsoleUser) -> None:
    user.get(PAGE)
    fields = [name for name in user.form("/policy").fields if name.startswith("rule.")]
    assert len(fields) > 10
    for name in fields:
        rule = name.removeprefix("rule.")
        assert f'id="about-{rule}"'.encode() in user.page.body
        assert f'aria-describedby="about-{rule}"'.encode() in user.page.body


def test_empty_namespace_is_removed(user: ConsoleUser) -> None:
    add_namespace(user, "12345.1")
    assert "The namespace 12345.1 and its policy are removed" in user.text, "before it happens"
    remove(user)
    assert "The namespace was removed." in user.text
    assert "12345.1" not in user.text


def test_namespace_with_identifiers_is_retired_instead(user: ConsoleUser) -> None:
    user.get(PAGE)
    remove(user)
    assert "Retire the namespace instead" in user.alert
    assert "Nobody can create identifiers in 12345 any more." in user.text, "before it happens"
    remove(user, retire="yes")
    assert "The namespace is retired." in user.text
    assert [form.fields.get("retire") for form in user.forms("/remove")] == [None], "not twice"
    user.get("/console/new")
    assert b'<option value="12345"' not in user.page.body


def test_user_without_permission_cannot_change_a_namespace(guest: ConsoleUser, user: ConsoleUser) -> None:
    guest.get("/console/namespaces")
    guest.submit("/namespaces", prefix="12345.1", profile="free")
    assert "Permission denied" in guest.alert
    user.get(PAGE)
    rules = {name: text for name, text in user.form("/policy").fields.items() if name.startswith("rule.")}
    changed = rules | {"rule.purpose": "Mine", "save": "yes"}
    for path, fields in ((f"{PAGE}/policy", changed), (f"{PAGE}/remove", {}), (f"{PAGE}/remove", {"retire": "yes"})):
        guest.get("/console/new")
        guest.post(path, guest.form("/new").fields | fields)
        assert "Permission denied" in guest.alert, (path, guest.text)
    user.get(PAGE)
    assert "Mine" not in user.text


# Types


def test_type_is_registered(user: ConsoleUser) -> None:
    user.get("/console/types")
    user.submit("/types", handle="12345/SCALE", name="Scale", description=f"Of a map {SCRIPT}", pattern="1:[0-9]+")
    assert "The type was registered." in user.text
    assert "12345/SCALE" in user.text
    assert SCRIPT in user.text
    assert SCRIPT.encode() not in user.page.body


def test_invalid_type_is_refused_and_kept_in_the_form(user: ConsoleUser) -> None:
    user.get("/console/types")
    user.submit("/types", handle="12345/SCALE", description="Of a map", pattern="(")
    assert user.alert
    assert user.form("/types").fields["pattern"] == "("
    user.submit("/types", handle=SCRIPT, pattern="")
    assert user.alert
    assert SCRIPT.encode() not in user.page.body


def test_user_without_permission_cannot_register_a_type(guest: ConsoleUser) -> None:
    guest.get("/console/types")
    guest.submit("/types", handle="12345/SCALE", description="Of a map")
    assert "Permission denied" in guest.alert


def test_two_people_change_different_rules_and_none_is_lost(server: Harness) -> None:
    first, second = ConsoleUser(server).sign_in(), ConsoleUser(server).sign_in()
    first.get(PAGE)
    second.get(PAGE)
    first.submit("/policy", **{"rule.purpose": "Theirs"})
    first.submit("/policy", save="yes")
    second.submit("/policy", **{"rule.default_ttl": "60"})
    assert "Theirs" not in second.text, "it is not a change of the second user"
    second.submit("/policy", save="yes")
    second.get(PAGE)
    assert "Theirs" in second.page.body.decode()
    assert second.form("/policy").fields["rule.default_ttl"] == "60"


def test_two_people_who_change_one_rule_get_a_conflict(server: Harness) -> None:
    first, second = ConsoleUser(server).sign_in(), ConsoleUser(server).sign_in()
    first.get(PAGE)
    second.get(PAGE)
    first.submit("/policy", **{"rule.purpose": "Theirs"})
    first.submit("/policy", save="yes")
    second.submit("/policy", **{"rule.purpose": "Mine"})
    assert "Somebody else has changed the rule Purpose" in second.alert


def test_rule_that_somebody_changes_during_the_save_is_not_reverted(
    user: ConsoleUser, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = ConsoleApi.send

    async def send_after_others(api: ConsoleApi, request: ApiRequest[Any]) -> object:
        if request.method != "GET":
            server.registry.do(ChangePolicy("12345", 'purpose = "Theirs"'), OPERATOR, "cli")
        return await send(api, request)

    user.get(PAGE)
    before = user.form("/policy").fields
    user.submit("/policy", **{"rule.default_ttl": "60"})
    with monkeypatch.context() as patch:
        patch.setattr(ConsoleApi, "send", send_after_others)
        user.submit("/policy", save="yes")
    user.get(PAGE)
    after = user.form("/policy").fields
    changed = {name: text for name, text in after.items() if name.startswith("rule.") and text != before[name]}
    assert changed == {"rule.purpose": "Theirs", "rule.default_ttl": "60"}


def test_another_profile_changes_only_what_the_preview_shows(user: ConsoleUser) -> None:
    user.get(PAGE)
    before = user.form("/policy").fields
    user.submit("/policy", **{"rule.profile": "pilin"})
    user.submit("/policy", save="yes")
    user.get(PAGE)
    after = user.form("/policy").fields
    assert [name for name in after if name.startswith("rule.") and after[name] != before[name]] == ["rule.profile"]
