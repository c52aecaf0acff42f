"""The page of a type of values (A6): what its values mean, and which data is valid.

A type is a handle, and its page is what the handle resolves to if its record defines a type and has no target. A type
that another service hosts has a page here if a built-in profile uses it, marked as a copy.
"""

from typing import Final
from urllib.parse import quote

import msgspec

from perseid.records.data_types import Definition, interpret_as
from perseid.records.record import Value
from perseid.registry.policy.authority import TypeDefinition
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.resolver.paths import Action, absolute_url, path_to

from .links import TextLink, to_visible
from .pages import PAGES_SCRIPT, render_page
from .texts import _
from .values import MAX_NAME

_API: Final = "/api/v1/types/"


def find_definition(values: tuple[Value, ...]) -> Definition | None:
    """The valid definition of a type in a record; None if it has none."""
    return next(filter(None, [interpret_as(value, Definition) for value in values]), None)


def type_page(
    handle: str,
    definition: Definition | TypeDefinition,
    settings: HttpSettings,
    headers: HeaderList = (),
    *,
    is_copy: bool = False,
) -> Response:
    """Return the page of a type; `is_copy`: another service hosts it."""
    path = path_to(handle, settings)
    actions = [TextLink(_("Definition as JSON"), _API + quote(handle, safe=""))]
    if not is_copy:
        record = TextLink(_("Show the record"), f"{path}?noredirect")
        actions = [record, TextLink(_("History"), f"{path}?action={Action.HISTORY.value}"), *actions]
    schema = definition.schema if isinstance(definition, Definition) else None
    return render_page(
        "type.html",
        settings,
        headers=headers,
        scripts=(PAGES_SCRIPT,),
        title=_("{name} – type of values").format(name=to_visible(definition.name, MAX_NAME)),
        name=to_visible(definition.name, MAX_NAME),
        handle=to_visible(handle, MAX_NAME),
        prefix=to_visible(handle.partition("/")[0], MAX_NAME),
        is_copy=is_copy,
        description=to_visible(definition.description),
        summary=to_visible(definition.description.partition("\n")[0], MAX_NAME),
        url="" if is_copy or not settings.public_url else absolute_url(path, settings),
        syntax=definition.syntax if isinstance(definition, TypeDefinition) else "",
        pattern=to_visible(definition.pattern or ""),
        schema=to_visible(msgspec.json.format(schema).strip()) if schema else "",
        example=to_visible(definition.example or ""),
        actions=actions,
    )
