"""The settings of answering as a text, for a process that gets them from another one and reads no files itself.

Resolvers see neither the settings of the installation nor any key: what they need to know of the site fits in one line.
"""

import json
from dataclasses import asdict
from typing import Final

from perseid.server.native.resolution import Settings


def _plain(settings: Settings) -> dict[str, bool | int | str]:
    """The settings as JSON has them; some numbers have a name besides."""
    values = asdict(settings).items()
    return {name: value if isinstance(value, bool | str) else int(value) for name, value in values}


_KINDS: Final = {name: type(value) for name, value in _plain(Settings()).items()}


def settings_to_json(settings: Settings) -> str:
    """One line of JSON."""
    return json.dumps(_plain(settings))


def settings_from_json(text: str) -> Settings:
    """Take what `settings_to_json` made; ValueError for anything else."""
    plain = json.loads(text)
    if not isinstance(plain, dict) or {name: type(value) for name, value in plain.items()} != _KINDS:
        raise ValueError("these are not the settings of answering")
    return Settings(**plain)
