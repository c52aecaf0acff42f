"""What a record says: values, permissions, keys, sites, and the data of every predefined type.

Frozen values, each with the same conversions to and from octets, JSON and text. Nothing here reads a clock or touches
a file: `now`, where 32-bit times must be placed, is an argument. Unknown types and codes pass through untouched.
"""

from typing import TYPE_CHECKING

from perseid._lazy import lazily

if TYPE_CHECKING:
    from . import types
    from .admin import ALL_PERMISSIONS, Admin, AdminPermission, permissions_from_batch, permissions_to_batch
    from .binary import MAX_OCTETS, Reader, Writer
    from .definition import Definition
    from .errors import InvalidData, RecordMisuse, RecordProblem
    from .json_form import (
        record_from_json,
        record_from_text,
        record_to_json,
        record_to_text,
        value_from_json,
        value_to_json,
        values_from_json,
    )
    from .keyfile import Scheme, is_private_key_file, needs_passphrase, read_key_file, write_key_file
    from .locations import DEFAULT_METHODS, Location, Locations, Method
    from .namespace import Namespace, NamespaceLocations, Status, namespace_of
    from .privkey import DsaPrivateKey, PrivateKey, RsaPrivateKey, RsaPrivateKeyWithoutPrimes
    from .pubkey import DhPublicKey, DsaPublicKey, PublicKey, RsaPublicKey
    from .record import Record, ascending, select, values_from_bytes, values_to_bytes
    from .seckey import SecretKey
    from .server import Interface, Purpose, Server, Transport
    from .signatures import Certificate, CertPermission, Claims, Comparison, RecordSignature, ValueDigest, Verdict
    from .site import Attribute, HashOption, PrimaryMask, Site
    from .texts import Alias, Description, Email, ServiceHandle, Text, Url
    from .typed import Data, class_of, data_from_json, data_from_text, data_to_text, interpret, interpret_as
    from .types import TypeQuery, has_type, matches
    from .value import (
        DEFAULT_PERMISSIONS,
        DEFAULT_TTL,
        MAX_VALUES,
        Permission,
        TtlType,
        Value,
        ValueRef,
        permissions_from_text,
        permissions_to_text,
        read_values,
        write_values,
    )
    from .vlist import ValueList
    from .xml import Element, parse_xml
else:
    __getattr__ = lazily(
        __name__,
        {
            "types": ("TypeQuery", "has_type", "matches"),
            "admin": ("ALL_PERMISSIONS", "Admin", "AdminPermission", "permissions_from_batch", "permissions_to_batch"),
            "binary": ("MAX_OCTETS", "Reader", "Writer"),
            "definition": ("Definition",),
            "errors": ("InvalidData", "RecordMisuse", "RecordProblem"),
            "json_form": (
                "record_from_json",
                "record_from_text",
                "record_to_json",
                "record_to_text",
                "value_from_json",
                "value_to_json",
                "values_from_json",
            ),
            "keyfile": ("Scheme", "is_private_key_file", "needs_passphrase", "read_key_file", "write_key_file"),
            "locations": ("DEFAULT_METHODS", "Location", "Locations", "Method"),
            "namespace": ("Namespace", "NamespaceLocations", "Status", "namespace_of"),
            "privkey": ("DsaPrivateKey", "PrivateKey", "RsaPrivateKey", "RsaPrivateKeyWithoutPrimes"),
            "pubkey": ("DhPublicKey", "DsaPublicKey", "PublicKey", "RsaPublicKey"),
            "record": ("Record", "ascending", "select", "values_from_bytes", "values_to_bytes"),
            "seckey": ("SecretKey",),
            "server": ("Interface", "Purpose", "Server", "Transport"),
            "signatures": (
                "Certificate",
                "CertPermission",
                "Claims",
                "Comparison",
                "RecordSignature",
                "ValueDigest",
                "Verdict",
            ),
            "site": ("Attribute", "HashOption", "PrimaryMask", "Site"),
            "texts": ("Alias", "Description", "Email", "ServiceHandle", "Text", "Url"),
            "typed": (
                "Data",
                "class_of",
                "data_from_json",
                "data_from_text",
                "data_to_text",
                "interpret",
                "interpret_as",
            ),
            "value": (
                "DEFAULT_PERMISSIONS",
                "DEFAULT_TTL",
                "MAX_VALUES",
                "Permission",
                "TtlType",
                "Value",
                "ValueRef",
                "permissions_from_text",
                "permissions_to_text",
                "read_values",
                "write_values",
            ),
            "vlist": ("ValueList",),
            "xml": ("Element", "parse_xml"),
        },
    )

__all__ = [
    "ALL_PERMISSIONS",
    "DEFAULT_METHODS",
    "DEFAULT_PERMISSIONS",
    "DEFAULT_TTL",
    "MAX_OCTETS",
    "MAX_VALUES",
    "Admin",
    "AdminPermission",
    "Alias",
    "Attribute",
    "CertPermission",
    "Certificate",
    "Claims",
    "Comparison",
    "Data",
    "Definition",
    "Description",
    "DhPublicKey",
    "DsaPrivateKey",
    "DsaPublicKey",
    "Element",
    "Email",
    "HashOption",
    "Interface",
    "InvalidData",
    "Location",
    "Locations",
    "Method",
    "Namespace",
    "NamespaceLocations",
    "Permission",
    "PrimaryMask",
    "PrivateKey",
    "PublicKey",
    "Purpose",
    "Reader",
    "Record",
    "RecordMisuse",
    "RecordProblem",
    "RecordSignature",
    "RsaPrivateKey",
    "RsaPrivateKeyWithoutPrimes",
    "RsaPublicKey",
    "Scheme",
    "SecretKey",
    "Server",
    "ServiceHandle",
    "Site",
    "Status",
    "Text",
    "Transport",
    "TtlType",
    "TypeQuery",
    "Url",
    "Value",
    "ValueDigest",
    "ValueList",
    "ValueRef",
    "Verdict",
    "Writer",
    "ascending",
    "class_of",
    "data_from_json",
    "data_from_text",
    "data_to_text",
    "has_type",
    "interpret",
    "interpret_as",
    "is_private_key_file",
    "matches",
    "namespace_of",
    "needs_passphrase",
    "parse_xml",
    "permissions_from_batch",
    "permissions_from_text",
    "permissions_to_batch",
    "permissions_to_text",
    "read_key_file",
    "read_values",
    "record_from_json",
    "record_from_text",
    "record_to_json",
    "record_to_text",
    "select",
    "types",
    "value_from_json",
    "value_to_json",
    "values_from_bytes",
    "values_from_json",
    "values_to_bytes",
    "write_key_file",
    "write_values",
]
