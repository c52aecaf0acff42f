"""The rules that refusals name by their ids, explained: those for names, and those of the registry."""

import tomllib
from functools import cache
from importlib.resources import files

from perseid.names.errors import rules as name_rules


@cache
def rules() -> dict[str, dict[str, str]]:
    """Title and text of each rule by its id, in the order of their letters and numbers."""
    own: dict[str, dict[str, str]] = tomllib.loads(
        files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")
    )
    found = {**name_rules(), **own}
    letters = list(dict.fromkeys(key[0] for key in found))
    return dict(sorted(found.items(), key=lambda item: (letters.index(item[0][0]), int(item[0][1:]))))
