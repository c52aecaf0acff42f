"""What a name is: handles, prefixes, URI forms and suffix schemes.

Pure functions and frozen values: nothing here reads a clock, draws a random number or touches a file; what is
needed of these comes as an argument. The rules and their ids are in docs/reference/names.md.
"""

from typing import TYPE_CHECKING

from perseid._lazy import lazily

if TYPE_CHECKING:
    from . import cordra, pilin, prefixes
    from .allocator import STRICT_CLOCK, Allocator, Lease, MemoryLease
    from .checkchar import check_character, has_valid_check
    from .cordra import Cordra, CordraName
    from .errors import InvalidName, NameMisuse, NameProblem
    from .handle import MAX_OCTETS, PROFILE_CASE_RULES, CaseRule, Handle
    from .human import KNOWN_RESOLVERS, parse_human
    from .pattern import Pattern
    from .pilin import Pilin, PilinCheck
    from .scheme import Details, Scheme, Source
    from .schemes import load_scheme, recognise, scheme_names
    from .suggesting import suggest
    from .uri import Reference, Resolver, parse_uri, to_host, to_http, to_path
    from .uuids import UuidText
else:
    __getattr__ = lazily(
        __name__,
        {
            "cordra": ("Cordra", "CordraName"),
            "pilin": ("Pilin", "PilinCheck"),
            "prefixes": (),
            "allocator": ("STRICT_CLOCK", "Allocator", "Lease", "MemoryLease"),
            "checkchar": ("check_character", "has_valid_check"),
            "errors": ("InvalidName", "NameMisuse", "NameProblem"),
            "handle": ("MAX_OCTETS", "PROFILE_CASE_RULES", "CaseRule", "Handle"),
            "human": ("KNOWN_RESOLVERS", "parse_human"),
            "pattern": ("Pattern",),
            "scheme": ("Details", "Scheme", "Source"),
            "schemes": ("load_scheme", "recognise", "scheme_names"),
            "suggesting": ("suggest",),
            "uri": ("Reference", "Resolver", "parse_uri", "to_host", "to_http", "to_path"),
            "uuids": ("UuidText",),
        },
    )

__all__ = [
    "KNOWN_RESOLVERS",
    "MAX_OCTETS",
    "PROFILE_CASE_RULES",
    "STRICT_CLOCK",
    "Allocator",
    "CaseRule",
    "Cordra",
    "CordraName",
    "Details",
    "Handle",
    "InvalidName",
    "Lease",
    "MemoryLease",
    "NameMisuse",
    "NameProblem",
    "Pattern",
    "Pilin",
    "PilinCheck",
    "Reference",
    "Resolver",
    "Scheme",
    "Source",
    "UuidText",
    "check_character",
    "cordra",
    "has_valid_check",
    "load_scheme",
    "parse_human",
    "parse_uri",
    "pilin",
    "prefixes",
    "recognise",
    "scheme_names",
    "suggest",
    "to_host",
    "to_http",
    "to_path",
]
