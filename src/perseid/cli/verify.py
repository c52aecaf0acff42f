"""`perseid verify`: verify a proof without an installation, or a whole ledger.

A proof outlives the server that wrote it, so this module loads `perseid.proof` and nothing of the ledger: no database,
no LMDB. `perseid verify --all` loads the rest when it is used.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perseid.proof.document import MAX_DOCUMENT, VerifiedProof, verify_proof
from perseid.proof.verifier import InvalidProof, LogKey
from perseid.records.data_types import data_to_text
from perseid.records.encoding import iso_time, to_iso
from perseid.records.errors import RecordProblem
from perseid.records.json_form import value_to_json
from perseid.records.record import Value

from ._common_options import resolve_directory
from ._output import AsJson, CommandFailed, pluralize, print_fields, print_json

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
"""The actions of entries, numbered as in docs/reference/ledger-format.md."""

STATES: Final = {0: "absent", 1: "published", 2: "reserved", 3: "unpublished", 4: "tombstone"}
"""The states of a handle after an entry."""

STANDARD_INPUT: Final = "-"


def verify(
    proof: Annotated[
        str | None, typer.Argument(metavar="PROOF", help="The file with the proof; - is standard input.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="The public key that you trust, or a file with it; see `perseid key list`.",
        ),
    ] = None,
    handle: Annotated[
        str | None, typer.Option("--handle", metavar="HANDLE", help="The handle that the proof must be about.")
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Verify the whole ledger and its views.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option("-d", "--directory", metavar="DIR", help="The installation, for --all or without --key."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Verify a proof, or with `--all` the whole ledger.

    Verifying a proof requires no server, installation or network, only the file and a key that you trust. Get the key
    from the operator, not from the source of the proof. In an installation, its own keys are trusted.

    `--all` verifies every entry, the Merkle tree, every signed checkpoint and the views. It reports the first
    difference, and lists redacted values.

    For example:
        perseid verify --all
        perseid prove 102.100.272/D7J1G0DQH -o map.proof.json
        perseid verify map.proof.json --handle 102.100.272/D7J1G0DQH
    """
    if whole == (proof is not None):
        raise typer.BadParameter("use either PROOF or --all")
    if proof is None:
        import_module(".history", __package__).verify_all(directory, json)
        return
    if handle is not None:
        handle = str(import_module("._arguments", __package__).parse_reference(handle).handle)
    keys = _trusted_keys(key, directory)
    document = _read(proof, MAX_DOCUMENT)
    problem = ""
    for trusted in keys:
        try:
            verified = verify_proof(document, trusted, handle=handle)
        except InvalidProof as error:
            problem = problem or str(error)
        else:
            _print_verified(verified, json)
            return
    raise CommandFailed(f"The proof is not valid: {problem}")


def short_time(microseconds: int) -> str:
    """Format a time for text, to the second."""
    return to_iso(microseconds // 1_000_000)


def shorten_time(text: str) -> str:
    """Shorten a time of a response to the second."""
    return f"{text[:19]}Z"


def printable(text: str) -> str:
    """Escape line breaks and everything that a terminal would act on; `_arguments` would load too much."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


# Keys and documents


def _trusted_keys(key: str | None, directory: Path | None) -> list[LogKey]:
    """Parse the key of `--key`, or load the keys of the installation."""
    if key is None:
        return _installation_keys(directory)
    text = key
    try:
        if "+" not in key or Path(key).is_file():
            text = Path(key).read_text(encoding="utf-8")
        return [LogKey.parse(text.strip())]
    except (InvalidProof, UnicodeDecodeError) as problem:
        raise typer.BadParameter(f"not a valid key: {problem}", param_hint="--key") from problem
    except OSError as problem:
        message = f"neither a key (NAME+HASH+KEY) nor a file with one: {problem.strerror}"
        raise typer.BadParameter(message, param_hint="--key") from problem


def _installation_keys(directory: Path | None) -> list[LogKey]:
    installations = import_module("perseid.registry.installation.installation")
    try:
        with installations.Installation.open(resolve_directory(directory), writable=False) as installation:
            keys: list[LogKey] = import_module(".keys", __package__).list_keys(installation)
            return keys
    except installations.NoInstallation as problem:
        message = "There is no installation here. Name the key that you trust with --key KEY"
        raise typer.BadParameter(message) from problem


def _read(path: str, limit: int) -> bytes:
    """Read the document; one byte more than `limit` shows that it is too long."""
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read(limit + 1)
    with Path(path).open("rb") as file:
        return file.read(limit + 1)


# Output


def _print_verified(proof: VerifiedProof, json: bool) -> None:
    values = [(proved, _decode_value(proved.content, proof.at)) for proved in proof.values]
    origin = proof.branch.predecessor.origin if proof.branch is not None else None
    interface, _, actor = (proof.actor or "").partition(" ")
    document: dict[str, Any] = {
        "handle": proof.handle,
        "seq": proof.seq,
        "at": iso_time(proof.at),
        "action": ACTIONS.get(proof.action, str(proof.action)),
        "state": STATES.get(proof.state, str(proof.state)),
    }
    checkpoint = {"origin": proof.checkpoint.origin, "size": proof.checkpoint.size, "key": str(proof.keys[-1])}
    if json:
        print_json(
            document
            | {"values": [value_to_json(value) for _, value in values], "undisclosed": proof.undisclosed}
            | ({} if proof.actor is None else {"interface": interface, "actor": actor})
            | ({} if proof.note is None else {"note": proof.note})
            | {"checkpoint": checkpoint, "continues": origin}
        )
        return
    fields: dict[str, object] = {
        "valid for": printable(proof.handle),
        "entry": f"{proof.seq}, {document['action']}, {short_time(proof.at)}",
        "state": document["state"],
    }
    for proved, value in values:
        fields[f"value {proved.index}"] = f"{printable(value.type)}  {printable(data_to_text(value))}"
    fields |= {
        "not shown": pluralize(proof.undisclosed, "more value") if proof.undisclosed else None,
        "actor": None if proof.actor is None else printable(f"{actor} ({interface})"),
        "note": None if proof.note is None else printable(proof.note),
        "signed": f"{printable(proof.checkpoint.origin)}, {pluralize(proof.checkpoint.size, 'entry', 'entries')}",
        "key": printable(str(proof.keys[-1])),
        "continues": None if origin is None else f"{printable(origin)}, which was restored from a backup",
    }
    print_fields(fields)


def _decode_value(content: bytes, at: int) -> Value:
    try:
        return Value.from_bytes(content, at // 1_000_000)
    except RecordProblem as problem:
        raise CommandFailed(f"The proof is valid, but a value in it cannot be shown: {problem}") from problem


commands: dict[str, Callable[..., None] | typer.Typer] = {"verify": verify}
