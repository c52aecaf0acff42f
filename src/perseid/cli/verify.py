"""`perseid verify`: check a proof anywhere, without an installation or what one needs; or check a whole ledger.

A proof outlives the server that wrote it. So this module loads the two modules that check proofs and nothing else of
the ledger: no database, no LMDB. `perseid verify --all`, which reads a ledger, loads the rest when it is asked for.
"""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import perseid
from perseid.records.data_types import data_to_text
from perseid.records.errors import RecordProblem
from perseid.records.json_form import value_to_json
from perseid.records.value import Value

from ._output import AsJson, print_fields, print_json, print_message

if TYPE_CHECKING:
    from perseid.proof.document import VerifiedProof
    from perseid.proof.verifier import LogKey

ACTIONS: Final = {
    1: "create",
    2: "update",
    3: "delete",
    4: "home",
    5: "unhome",
    6: "reserve",
    7: "publish",
    8: "unpublish",
    9: "tombstone",
    10: "redact",
    11: "rotate_key",
    12: "branch",
}
"""What entries do, as docs/reference/ledger-format.md numbers it."""

STATES: Final = {0: "absent", 1: "normal", 2: "reserved", 3: "unpublished", 4: "tombstone"}
"""What a name is after an entry."""

STANDARD_INPUT: Final = "-"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERIFIER_PACKAGE = "perseid_verifier"  # under which name the verifier is loaded without the room it stands in


def verify(
    proof: Annotated[
        str | None, typer.Argument(metavar="PROOF", help="The file with the proof; `-` is standard input.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="The public key that you trust, or a file with it; `perseid key list` shows it.",
        ),
    ] = None,
    handle: Annotated[
        str | None, typer.Option("--handle", metavar="HANDLE", help="The name that the proof must be about.")
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Check the whole ledger, and the views against it.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option("-d", "--directory", metavar="DIR", help="The installation, for --all and where no key is given."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check a proof, or with `--all` the whole ledger.

    A proof is checked without a server, an installation or a network: it takes the file and a key that you trust. Get
    the key from the operator, not from where you got the proof. In an installation its own keys are trusted.

    With `--all` every entry is computed anew, the tree over them, every signed checkpoint, and what is served; the
    first difference is named, and so are values that were erased.

    For example:
        perseid verify --all
        perseid prove 102.100.272/D7J1G0DQH -o map.proof.json
        perseid verify map.proof.json --handle 102.100.272/D7J1G0DQH
    """
    if whole == (proof is not None):
        raise typer.BadParameter("name the file with the proof, or say --all")
    if proof is None:
        import_module(".history", __package__).verify_all(directory, json)
        return
    checker = _load_verifier()
    keys = _trusted_keys(checker, key, directory)
    document = _read(proof, checker.MAX_DOCUMENT)
    problem = ""
    for trusted in keys:
        try:
            found = checker.verify_proof(document, trusted, handle=handle)
        except checker.InvalidProof as error:
            problem = problem or str(error)
        else:
            _print_verified(found, json)
            return
    print_message(f"perseid: the proof does not hold: {problem}")
    raise typer.Exit(1)


def iso_time(microseconds: int) -> str:
    """A time as JSON has it, with all its digits."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def short_time(microseconds: int) -> str:
    """A time for people, to the second."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="seconds").replace("+00:00", "Z")


def printable(text: str) -> str:
    """A text on one line, without anything that a terminal would act upon."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


# What is checked


def _load_verifier() -> ModuleType:
    """The module that checks proofs, from a package that has nothing else in it.

    Importing it from the ledger would load all of the ledger, which a verifier neither needs nor must have.
    """
    if "perseid.ledger" in sys.modules:
        return import_module("perseid.proof.document")
    if _VERIFIER_PACKAGE not in sys.modules:
        alone = ModuleType(_VERIFIER_PACKAGE, "The verifier of proofs, alone.")
        alone.__path__ = [str(Path(folder) / "ledger") for folder in perseid.__path__]
        sys.modules[_VERIFIER_PACKAGE] = alone
    return import_module(f"{_VERIFIER_PACKAGE}.proof_document")


def _trusted_keys(checker: ModuleType, given: str | None, directory: Path | None) -> "list[LogKey]":
    """The keys that are trusted: the one that was given, or those of the installation."""
    if given is None:
        return _installation_keys(directory)
    text = given
    try:
        if "+" not in given or Path(given).is_file():
            text = Path(given).read_text(encoding="utf-8")
        return [checker.LogKey.parse(text.strip())]
    except (checker.InvalidProof, UnicodeDecodeError) as problem:
        raise typer.BadParameter(f"this is no key: {problem}", param_hint="--key") from problem
    except OSError as problem:
        message = f"this is neither a key (NAME+HASH+KEY) nor a file with one: {problem.strerror}"
        raise typer.BadParameter(message, param_hint="--key") from problem


def _installation_keys(directory: Path | None) -> "list[LogKey]":
    place = import_module("._place", __package__)
    problems = import_module("perseid.registry.installation.installation")
    try:
        with problems.Installation.open(place.directory_of(directory), writable=False) as installation:
            keys: list[LogKey] = import_module(".keys", __package__).keys_of(installation)
            return keys
    except problems.NoInstallation as problem:
        message = "say which key you trust: without one, a proof proves nothing (there is no installation here either)"
        raise typer.BadParameter(message, param_hint="--key") from problem


def _read(path: str, limit: int) -> bytes:
    """The document; one octet more than is allowed shows that it is too long."""
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read(limit + 1)
    with Path(path).open("rb") as file:
        return file.read(limit + 1)


# What is shown


def _print_verified(found: "VerifiedProof", json: bool) -> None:
    values = [(proved, _decode_value(proved.content, found.at)) for proved in found.values]
    origin = found.branch.predecessor.origin if found.branch is not None else None
    interface, _, actor = (found.actor or "").partition(" ")
    document: dict[str, Any] = {
        "handle": found.handle,
        "seq": found.seq,
        "at": iso_time(found.at),
        "action": ACTIONS.get(found.action, str(found.action)),
        "state": STATES.get(found.state, str(found.state)),
    }
    checkpoint = {"origin": found.checkpoint.origin, "size": found.checkpoint.size, "key": str(found.keys[-1])}
    if json:
        print_json(
            document
            | {"values": [value_to_json(value) for _, value in values], "undisclosed": found.undisclosed}
            | ({} if found.actor is None else {"door": interface, "actor": actor})
            | ({} if found.note is None else {"note": found.note})
            | {"checkpoint": checkpoint, "continues": origin}
        )
        return
    fields: dict[str, object] = {
        "holds": printable(found.handle),
        "entry": f"{found.seq}, {document['action']}, {short_time(found.at)}",
        "state": document["state"],
    }
    for proved, value in values:
        fields[f"value {proved.index}"] = f"{printable(value.type)}  {printable(data_to_text(value))}"
    fields |= {
        "not shown": f"{found.undisclosed} more values" if found.undisclosed else None,
        "actor": None if found.actor is None else printable(f"{actor} ({interface})"),
        "note": None if found.note is None else printable(found.note),
        "signed": f"{printable(found.checkpoint.origin)}, {found.checkpoint.size:,} entries",
        "key": printable(str(found.keys[-1])),
        "continues": None if origin is None else f"{printable(origin)}, which was restored from a backup",
    }
    print_fields(fields)


def _decode_value(content: bytes, at: int) -> Value:
    """A value as the records have it; `verify_proof` has found that it can be read."""
    try:
        return Value.from_bytes(content, at // 1_000_000)
    except RecordProblem as problem:
        print_message(f"perseid: the proof holds, but a value in it cannot be shown: {problem}")
        raise typer.Exit(1) from problem


commands: dict[str, Callable[..., None] | typer.Typer] = {"verify": verify}
