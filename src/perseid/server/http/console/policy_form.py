"""The rules of a policy as fields of a form: choices, numbers and plain text, so that nobody writes TOML.

Each rule has one text, which the page shows and the form sends back. A list has an item on each line, and options of a
scheme have `name = value`.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from perseid.client.errors import Refused
from perseid.registry.policy.policy import DEFAULTS, KEYS, MAX_PURPOSE, Policy
from perseid.registry.policy.text import InvalidPolicy, format_toml, parse
from perseid.server.http.messages import Parameters
from perseid.server.http.pages.links import to_visible
from perseid.server.http.pages.texts import _

YES: Final = "yes"
NO: Final = "no"

SHORT: Final = 80
"""Characters of a text that fits into a field of one line."""

MAX_SUMMARY: Final = 60
"""Characters of a rule in the heading of its group."""


class PolicyRule(NamedTuple):
    """One rule of a policy, in a form."""

    name: str
    label: str
    about: str
    current: str
    """As stored."""
    text: str
    """As the user has written it."""
    shown: str
    """As it was stored when the form was opened."""

    @property
    def kind(self) -> str:
        """`choice`, `number`, `line` or `lines`."""
        default = getattr(DEFAULTS, self.name)
        if isinstance(default, bool | Enum):
            return "choice"
        if isinstance(default, int):
            return "number"
        is_long = max(len(self.text), len(self.current)) > SHORT or "\n" in self.text + self.current
        return "lines" if isinstance(default, tuple | dict) or is_long else "line"

    @property
    def choices(self) -> dict[str, str]:
        """What can be chosen, with its meaning."""
        if isinstance(getattr(DEFAULTS, self.name), bool):
            return {YES: _("yes"), NO: _("no")}
        words = _describe_choices().get(self.name) or _describe_choices()["who"]
        return {each: words.get(each, each) for each in KEYS[self.name].choices}

    @property
    def hint(self) -> str:
        """How the text is written, if it is not obvious."""
        default = getattr(DEFAULTS, self.name)
        if isinstance(default, tuple):
            return _("One on each line.")
        return _("One on each line, as in: version = 1") if isinstance(default, dict) else ""

    @property
    def limit(self) -> int | None:
        """The longest text, in characters."""
        return MAX_PURPOSE if self.name == "purpose" else None

    @property
    def is_edited(self) -> bool:
        """Whether the form has another text than is stored."""
        return self.text != self.current

    @property
    def summary(self) -> str:
        """The stored rule in a few words; empty if it is off."""
        if self.current == NO:
            return ""
        return to_visible(", ".join(self.describe(self.current).splitlines()), MAX_SUMMARY)

    def describe(self, text: str) -> str:
        """A text in the words of the page."""
        return self.choices.get(text, text) if self.kind == "choice" else text

    def to_toml(self) -> str:
        """The line of the rule. Raises `InvalidPolicy`."""
        return f"{self.name} = {format_toml(self._to_plain())}\n"

    def _to_plain(self) -> object:
        default = getattr(DEFAULTS, self.name)
        if isinstance(default, bool):
            return {YES: True, NO: False}.get(self.text, self.text)
        if isinstance(default, tuple):
            return _split(self.text)
        if isinstance(default, dict):
            return dict([_parse_option(self.name, line) for line in _split(self.text)])
        digits = self.text.removeprefix("-")
        is_number = isinstance(default, int) and digits.isascii() and digits.isdigit() and len(digits) < 19
        return int(self.text) if is_number else self.text


def _parse_option(rule: str, line: str) -> tuple[str, Any]:
    name, equals, value = [part.strip() for part in line.partition("=")]
    if not equals:
        raise InvalidPolicy(rule, _("{line} is not an option such as version = 1").format(line=line))
    if value in ("true", "false"):
        return name, value == "true"
    if value.isascii() and value.isdigit() and len(value) < 19:
        return name, int(value)
    if value.startswith('"'):  # a text that would be something else without
        return name, parse(f"{rule} = {value}", (rule,))[rule]
    return name, value


def _format_option(name: str, value: object) -> str:
    plain = f"{name} = {value}"
    is_plain = isinstance(value, str) and not value.startswith('"') and _parse_option(name, plain)[1] == value
    return plain if is_plain else f"{name} = {format_toml(value)}"


def to_text(value: object) -> str:
    """The text of a stored rule."""
    if isinstance(value, bool):
        return YES if value else NO
    if isinstance(value, dict):
        return "\n".join([_format_option(name, item) for name, item in value.items()])
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_rules(form: Parameters, stored: Mapping[str, object]) -> list[PolicyRule]:
    """The rules as stored, with what the form has for those that the user has changed."""
    fields, labels = dict(reversed(form.pairs)), describe_rules()
    rules = []
    for name, key in KEYS.items():
        current = _clean(to_text(stored[name])) if name in stored else ""
        shown = _clean(fields.get(f"was.{name}", current))
        text = _clean(fields.get(f"rule.{name}", shown))
        written = current if text == shown else text
        rules.append(PolicyRule(name, labels[name], _(key.about), current, written, shown))
    return rules


def _clean(text: str) -> str:
    """Without surrounding whitespace, and with one kind of line ends: browsers send another."""
    return "\n".join([line.strip() for line in text.strip().splitlines()])


def _split(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def check_rules(rules: list[PolicyRule], stored: Mapping[str, object]) -> None:
    """Check the policy as it would be, for the preview. Raises `InvalidPolicy`."""
    known = [rule for rule in rules if rule.name in stored or rule.is_edited]
    before = "".join([f"{name} = {format_toml(value)}\n" for name, value in stored.items() if name in KEYS])
    Policy.from_toml("".join([rule.to_toml() for rule in known]), before=Policy.from_stored(before))


def check_conflicts(rules: list[PolicyRule]) -> None:
    """Refuse to change a rule that somebody else has changed since the form was opened."""
    for rule in rules:
        if rule.current not in (rule.shown, rule.text):
            reason = _("Somebody else has changed the rule {name} since you opened the page: it is {value} now")
            reason = reason.format(name=rule.label, value=rule.describe(rule.current))
            raise Refused(reason, advice=_("Check it, and change it again"))


def group_rules(rules: list[PolicyRule]) -> Iterator[tuple[str, list[PolicyRule]]]:
    """The rules under the headings of the page, in the order of the policy."""
    headings = {
        "profile": _("Purpose"),
        "scheme": _("Suffixes"),
        "who_may_mint": _("Who can do what"),
        "required_types": _("Values"),
        "authority": _("Creator and owner"),
        "deletion": _("Deletion and history"),
        "default_ttl": _("Defaults"),
        "work_type": _("Links between records"),
    }
    heading, group = "", list[PolicyRule]()
    for rule in rules:
        if rule.name in headings:
            if group:
                yield heading, group
            heading, group = headings[rule.name], []
        group.append(rule)
    yield heading, group


def describe_rules() -> dict[str, str]:
    """The label of each rule."""
    return {
        "profile": _("Profile"),
        "purpose": _("Purpose"),
        "scheme": _("Scheme of suffixes"),
        "scheme_options": _("Options of the scheme"),
        "case": _("Uppercase and lowercase letters"),
        "nfc": _("Require composed characters"),
        "single_script": _("Require one script"),
        "max_ahead": _("Milliseconds ahead of the clock"),
        "strict_clock": _("Never ahead of the clock"),
        "who_may_mint": _("Who can create identifiers"),
        "who_may_list": _("Who can list identifiers"),
        "retired": _("Retired"),
        "required_types": _("Required types"),
        "allowed_types": _("Allowed types"),
        "forbidden_types": _("Forbidden types"),
        "registered_types": _("Require registered types"),
        "validate_types": _("Validate data by its type"),
        "url_schemes": _("Schemes of URLs"),
        "authority": _("Record creator, owner and date of creation"),
        "creation_date_type": _("Type of the date of creation"),
        "creator_type": _("Type of the creator"),
        "default_creator": _("Default creator"),
        "owner_type": _("Type of owners"),
        "deletion": _("Deletion"),
        "tombstone_reason_type": _("Type of the reason of a tombstone"),
        "tombstone_date_type": _("Type of the date of a tombstone"),
        "tombstone_replacement_type": _("Type of the replacement in a tombstone"),
        "show_actors": _("Show everybody who made a change"),
        "show_past": _("Show everybody earlier versions"),
        "default_ttl": _("Seconds in caches (TTL)"),
        "default_administrators": _("Default administrators"),
        "work_type": _("Type of the link to the work"),
        "expression_type": _("Type of links to fixed versions"),
        "object_type": _("Type of the link to the object"),
        "metadata_type": _("Type of the link to the metadata"),
    }


def _describe_choices() -> dict[str, dict[str, str]]:
    """The choices of rules in words; those of `who_may_…` under `who`."""
    return {
        "case": {
            "sensitive": _("differ: Map-1 and map-1 are two identifiers"),
            "insensitive": _("are equal: Map-1 and map-1 are one identifier"),
            "path": _("are equal before the first ? or #, and differ after it"),
        },
        "deletion": {
            "allowed": _("Administrators can delete identifiers"),
            "tombstone": _("Identifiers are never deleted, and become tombstones"),
        },
        "who": {
            "administrators": _("administrators of the namespace"),
            "server": _("server administrators only"),
            "authenticated": _("everybody who has signed in"),
            "public": _("everybody"),
        },
    }
