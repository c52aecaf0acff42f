"""The forms in which a record can be asked for besides its values: by media type, for content negotiation.

Each form is text in UTF-8 that follows from what was resolved and nothing else. It is made of public values only, so
whoever may ask for the record may have it, and caches may keep it as long as they may keep the record.
"""

from collections.abc import Callable, Mapping
from typing import Final

from perseid.records.json_parsing import write_json
from perseid.registry.queries.links import LINKSET, LINKSET_JSON, linkset, linkset_json
from perseid.registry.queries.signposting import Described, link_set

from .citation_forms import as_bibtex, as_text, csl
from .json_ld import as_json_ld

JSON_LD: Final = "application/ld+json"
CSL_JSON: Final = "application/vnd.citationstyles.csl+json"
BIBTEX: Final = "application/x-bibtex"
BIBLIOGRAPHY: Final = "text/x-bibliography"

FORMS: Final[Mapping[str, Callable[[Described], str]]] = {
    JSON_LD: as_json_ld,
    LINKSET_JSON: lambda described: linkset_json(link_set(described), described.address),
    LINKSET: lambda described: linkset(link_set(described), described.address),
    # One item, as services for other identifiers answer; a file of citations is a list of them.
    CSL_JSON: lambda described: write_json(csl(described.citation)),
    BIBTEX: lambda described: f"{as_bibtex(described.citation)}\n",
    BIBLIOGRAPHY: lambda described: f"{as_text(described.citation)}\n",
}
"""The forms by media type; where a client does not care, the earlier one is given."""
