"""Namespaces with an editor that explains each rule of the policy, and the types of values."""

from typing import Final

from perseid.client.errors import ClientError, Refused
from perseid.registry.policy.policy import PROFILES
from perseid.registry.policy.text import InvalidPolicy
from perseid.server.http.messages import Response
from perseid.server.http.pages.browse_pages import namespace_path
from perseid.server.http.pages.texts import _

from .policy_form import PolicyRule, check_conflicts, check_rules, group_rules, read_rules
from .requests import ConsoleRequest
from .routing import Pages

NAMESPACES: Final = Pages("namespaces")

PAGE_SIZE: Final = 100
"""Namespaces or types on a page."""


@NAMESPACES.get("/namespaces")
async def list_namespaces(console: ConsoleRequest) -> Response:
    """List the namespaces, with a form for another one."""
    return await _namespaces_page(console)


@NAMESPACES.post("/namespaces")
async def add_namespace(console: ConsoleRequest) -> Response:
    """Create a namespace."""
    try:
        made = await console.api.add_namespace(
            console.text("prefix"),
            profile=console.text("profile"),
            purpose=console.text("purpose"),
            creator=console.text("creator"),
            administrators=console.text("administrators").split(),
            note=console.text("note"),
        )
    except ClientError as error:
        return await _namespaces_page(console, error)
    return console.redirect("namespaces", made.prefix, done="namespace-created")


async def _namespaces_page(console: ConsoleRequest, problem: ClientError | None = None) -> Response:
    page = await console.api.namespaces(mine=True, page_size=PAGE_SIZE).page(console.cursor())
    return console.render(
        "namespaces.html",
        title=_("Namespaces"),
        problem=problem,
        namespaces=page.namespaces,
        next_cursor=page.next,
        profiles={name: _describe_profiles().get(name, name) for name in PROFILES},
        fields=dict(console.form.pairs),
    )


def _describe_profiles() -> dict[str, str]:
    """What the policy of each profile says, in a few words."""
    return {
        "pilin": _("pilin: short suffixes with a check character; creator and dates; never deleted"),
        "cordra": _("cordra: suffixes from UUIDs; never deleted"),
        "free": _("free: any suffix; uppercase and lowercase letters are equal"),
        "exact": _("exact: any suffix; uppercase and lowercase letters differ"),
    }


@NAMESPACES.get("/namespaces/{prefix}")
async def show_namespace(console: ConsoleRequest) -> Response:
    """Show a namespace with its policy as a form."""
    return await _namespace_page(console)


@NAMESPACES.post("/namespaces/{prefix}/policy")
async def change_policy(console: ConsoleRequest) -> Response:
    """Show which rules would change, or change them."""
    prefix = console.names["prefix"]
    stored = await console.api.policy(prefix)
    rules = read_rules(console.form, stored.rules)
    changed = [rule for rule in rules if rule.text != rule.current]
    try:
        check_conflicts(changed)
        check_rules(rules, stored.rules)
    except Refused as error:
        return await _namespace_page(console, error)
    except InvalidPolicy as error:
        return await _namespace_page(console, _refuse(error, changed))
    if not console.text("save"):
        title = _("Change the policy of {prefix}").format(prefix=prefix)
        return console.render(
            "policy_preview.html", title=title, prefix=prefix, rules=changed, note=console.text("note")
        )
    # Others may change the other rules meanwhile. But a profile alone would replace them all, unlike the preview.
    sent = rules if any(rule.name == "profile" for rule in changed) else changed
    text = "".join([rule.to_toml() for rule in sent])
    try:
        change_case = bool(console.text("change_case"))
        await console.api.change_policy(prefix, text, change_case=change_case, note=console.text("note"))
    except ClientError as error:
        return await _namespace_page(console, error)
    return console.redirect("namespaces", prefix, done="policy-saved")


@NAMESPACES.post("/namespaces/{prefix}/remove")
async def remove_namespace(console: ConsoleRequest) -> Response:
    """Remove an empty namespace, or retire one."""
    prefix, retire = console.names["prefix"], bool(console.text("retire"))
    try:
        await console.api.remove_namespace(prefix, retire=retire, note=console.text("note"))
    except ClientError as error:
        return await _namespace_page(console, error)
    if retire:
        return console.redirect("namespaces", prefix, done="namespace-retired")
    return console.redirect("namespaces", done="namespace-removed")


async def _namespace_page(console: ConsoleRequest, problem: ClientError | None = None) -> Response:
    prefix = console.names["prefix"]
    namespace = await console.api.namespace(prefix)
    rules: list[PolicyRule] = []
    try:
        rules = read_rules(console.form, (await console.api.policy(prefix)).rules)
    except ClientError as error:
        problem = problem or error
    groups = list(group_rules(rules)) if rules else []
    return console.render(
        "namespace.html",
        title=prefix,
        problem=problem,
        namespace=namespace,
        groups=groups,
        public_path=namespace_path(prefix),
    )


def _refuse(error: InvalidPolicy, rules: list[PolicyRule]) -> Refused:
    """The refusal of a rule, with the label of its field."""
    label = next((rule.label for rule in rules if rule.name == error.key), "")
    return Refused(f"{label}: {error.message}" if label else str(error))


# Types


@NAMESPACES.get("/types")
async def list_types(console: ConsoleRequest) -> Response:
    """List the registered types, with a form for another one."""
    return await _types_page(console)


@NAMESPACES.post("/types")
async def add_type(console: ConsoleRequest) -> Response:
    """Register a type."""
    pattern, example = console.text("pattern") or None, console.text("example") or None
    try:
        await console.api.add_type(
            console.text("handle"),
            console.text("description"),
            name=console.text("name"),
            pattern=pattern,
            example=example,
        )
    except ClientError as error:
        return await _types_page(console, error)
    return console.redirect("types", done="type-created")


async def _types_page(console: ConsoleRequest, problem: ClientError | None = None) -> Response:
    prefix = console.query.first("prefix") or ""
    page = await console.api.types(prefix=prefix, page_size=PAGE_SIZE).page(console.cursor())
    return console.render(
        "types.html",
        title=_("Types of values"),
        problem=problem,
        types=page.types,
        prefix=prefix,
        next_cursor=page.next,
        fields=dict(console.form.pairs),
    )
