"""`perseid login`, `logout` and `whoami`: saved servers, and who you are there."""

import os
import sys
from collections.abc import Callable
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from ._arguments import ActingAs, Directory, get_identity, parse_value_ref
from ._commands import REMOTE, REMOTE_VARIABLE, CaFile, KeyFile, SecretFile, TokenFile, resolve_directory
from ._output import AsJson, CommandFailed, confirm, is_terminal, print_fields, print_json, print_message

if TYPE_CHECKING:  # loading it takes longer than showing help
    from perseid.client.api import Client
    from perseid.client.remotes import Remote


def login(  # noqa: PLR0913 - options
    server: Annotated[str, typer.Argument(metavar="SERVER", help="The URL, as in `https://id.example.org`.")],
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The name to save it under. Default: the host.")
    ] = None,
    token_file: TokenFile = None,
    acting_as: ActingAs = None,
    secret_file: SecretFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="SHA256", help="The certificate to accept, as its operator tells you."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check your credentials on a server, and save both in a file that only you can read.

    Credentials are a token, or an identity with its secret or private key. Without them, a terminal asks for a token.
    They are never on the command line, and are not sent over plain HTTP except to this machine. A certificate that no
    authority has signed is shown and saved if you accept it; later only this one is accepted.

    `--remote NAME` or the variable PERSEID_REMOTE then selects the server for a command.

    For example:
        perseid login https://id.example.org --token-file token.txt
        perseid login https://id.example.org --name work --as 300:0.NA/12345 --key-file admin.key
    """
    from perseid.client.remotes import InvalidRemote, check_name, save_remote  # noqa: PLC0415 - see above

    name = name or (urlsplit(server).hostname or server).replace(":", "-")
    try:
        check_name(name)
    except InvalidRemote as problem:
        raise typer.BadParameter(str(problem), param_hint="--name") from problem
    remote = read_options(server, acting_as, token_file, secret_file, key_file, ca_file)
    remote = _trust(remote, fingerprint)
    if not (remote.token or remote.identity):
        remote = _ask_for_token(remote)
    identity = _identify(remote)
    save_remote(name, remote, os.environ)
    if json:
        print_json({"remote": name, "server": remote.server, "identity": identity})
        return
    print_fields({"remote": name, "server": remote.server, "identity": identity})
    print_message(f"To use it: --remote {name}, or {REMOTE_VARIABLE}={name}")


def logout(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the saved server.")], json: AsJson = False
) -> None:
    """Remove a saved server and its credentials from this machine. A token stays valid: see `perseid token revoke`.

    For example:
        perseid logout work
    """
    from perseid.client.remotes import InvalidRemote, remove_remote  # noqa: PLC0415 - see above

    try:
        remove_remote(name, os.environ)
    except InvalidRemote as problem:
        raise CommandFailed(str(problem)) from problem
    if json:
        print_json({"remote": name})
    else:
        print_message(f"Removed {name} and its credentials.")


def whoami(directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Show where you work, and as whom; a server checks your credentials.

    For example:
        perseid whoami
        perseid whoami --as 300:0.NA/102.100.272 --json
    """
    connect = REMOTE.get()
    if connect is None:
        where, identity = str(resolve_directory(directory).resolve()), str(get_identity(acting_as))
    else:
        remote: Remote = connect.args[0]  # type: ignore[attr-defined] # a partial call of `connect` below
        where, identity = remote.server, _identify(remote)
    if json:
        print_json({"server" if connect else "directory": where, "identity": identity})
    else:
        print_fields({"server" if connect else "directory": where, "identity": identity})


# Shared with all commands that work on servers


def load(name: str) -> "Remote":
    """Load a saved remote."""
    from perseid.client.remotes import InvalidRemote, load_remote  # noqa: PLC0415 - see above

    try:
        return load_remote(name, os.environ)
    except InvalidRemote as problem:
        raise CommandFailed(str(problem)) from problem


def read_options(
    server: str,
    acting_as: str | None,
    token_file: Path | None,
    secret_file: Path | None,
    key_file: Path | None,
    ca_file: Path | None,
) -> "Remote":
    """Read the options for a server."""
    from perseid.client.remotes import InvalidRemote, Remote, read_secret  # noqa: PLC0415 - see above

    if sum(file is not None for file in (token_file, secret_file, key_file)) > 1:
        raise typer.BadParameter("use only one of --token-file, --secret-file and --key-file")
    if (acting_as is None) != (secret_file is None and key_file is None):
        raise typer.BadParameter("use --as INDEX:HANDLE together with --secret-file or --key-file", param_hint="--as")
    if acting_as is not None:
        acting_as = str(parse_value_ref(acting_as, "--as"))
    try:
        return Remote(
            server,
            acting_as or "",
            "" if token_file is None else read_secret(token_file),
            "" if secret_file is None else read_secret(secret_file),
            "" if key_file is None else str(key_file.resolve()),
            "" if ca_file is None else str(ca_file.resolve()),
        )
    except InvalidRemote as problem:
        raise CommandFailed(str(problem)) from problem


def connect(remote: "Remote") -> "Client":
    """Return a client of the server; nothing is sent yet."""
    try:
        return remote.connect()
    except ValueError as problem:
        raise CommandFailed(str(problem)) from problem


def _trust(remote: "Remote", fingerprint: str | None) -> "Remote":
    """Pin the certificate of the server if no authority has signed it and the user accepts it."""
    import msgspec  # noqa: PLC0415 - see above

    from perseid.client.api_exchange import Origin  # noqa: PLC0415
    from perseid.client.remotes import find_untrusted, format_fingerprint  # noqa: PLC0415

    try:
        origin = Origin.parse(remote.server)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="SERVER") from problem
    if fingerprint is not None:
        return msgspec.structs.replace(remote, fingerprint=fingerprint)
    if not origin.is_https:
        return remote
    found = find_untrusted(origin.host, origin.port, Path(remote.ca_file) if remote.ca_file else None)
    if not found:
        return remote
    if not is_terminal(sys.stdin):
        raise CommandFailed(
            f"No known authority has signed the certificate of {origin.url}",
            f"If its operator confirms it: --fingerprint {found}. Or trust an authority: --ca-file FILE",
        )
    print_message(f"The certificate has the SHA-256 fingerprint {format_fingerprint(found)}.")
    print_message("Compare it with the one that the operator of the server tells you.")
    confirm(f"No known authority has signed the certificate of {origin.url}")
    return msgspec.structs.replace(remote, fingerprint=found)


def _ask_for_token(remote: "Remote") -> "Remote":
    import msgspec  # noqa: PLC0415 - see above

    if not is_terminal(sys.stdin):
        raise CommandFailed(
            "Credentials required", "Use --token-file FILE, or --as INDEX:HANDLE with --secret-file FILE"
        )
    token = getpass("Token: ").strip()
    if not token:
        raise CommandFailed("Nothing was saved")
    return msgspec.structs.replace(remote, token=token)


def _identify(remote: "Remote") -> str:
    """Let the server check the credentials, and return the identity."""
    from perseid.registry.access.token_records import InvalidToken, Secret  # noqa: PLC0415 - see above

    try:
        with remote.connect() as client:
            if remote.token:
                return client.token(Secret.parse(remote.token).id).issuer
            if remote.identity:
                next(iter(client.tokens().pages()))
                return remote.identity
            client.overview()
            return "anonymous"
    except (ValueError, InvalidToken) as problem:
        raise CommandFailed(str(problem)) from problem


commands: dict[str, Callable[..., None] | typer.Typer] = {"login": login, "logout": logout, "whoami": whoami}
