"""`perseid login`, `logout` and `whoami`: saved servers, and who you are there."""

import os
import sys
from collections.abc import Callable
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlsplit

import typer

from ._arguments import ActingAs, Directory, get_identity, parse_value_ref, printable
from ._common_options import REMOTE, REMOTE_VARIABLE, resolve_directory
from ._output import AsJson, CommandFailed, confirm, is_terminal, print_fields, print_json, print_message, print_text

if TYPE_CHECKING:  # loading it takes longer than showing help
    from perseid.client.api import Client
    from perseid.client.remotes import Remote

    from ._native import NativeTarget


def login(  # noqa: PLR0913 - options
    server: Annotated[
        str,
        typer.Argument(metavar="SERVER", help="`https://HOST`, or `HOST[:PORT]` of the native protocol."),
    ],
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The name to save it under. Default: the host.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A file with your token.")
    ] = None,
    acting_as: Annotated[
        str | None,
        typer.Option("--as", metavar="INDEX:HANDLE", help="Your identity there, with `--secret-file` or `--key-file`."),
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", metavar="FILE", help="A file with the secret of the identity.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", metavar="FILE", help="The private key of the identity.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", metavar="FILE", help="Certificates to trust, in PEM.")
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            "--fingerprint",
            metavar="SHA256",
            help="The server's certificate, or its key in the native protocol, as its operator tells you.",
        ),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option("--proxy", metavar="URL", help="Connect through this HTTP proxy; saved. A password is asked for."),
    ] = None,
    timeout: Annotated[
        int | None, typer.Option("--timeout", metavar="SECONDS", min=1, help="Seconds to wait for the server; saved.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Check your credentials on a server, and save both in a file that only you can read.

    Credentials are a token, or an identity with its secret or private key. Without them, a terminal asks for a token.
    They are never on the command line, and are not sent over plain HTTP except to this machine. A certificate that no
    authority has signed is shown and saved if you accept it; later only this one is accepted. The key of a server of
    the native protocol is shown and saved likewise; later every response must be certified by this key.

    `--remote NAME` or the variable PERSEID_REMOTE then selects the server for a command.

    For example:
        perseid login https://id.example.org --token-file token.txt
        perseid login https://id.example.org --name work --as 300:0.NA/12345 --key-file admin.key
        perseid login id.example.org:2641 --name native --as 300:0.NA/12345 --key-file admin.key
    """
    import msgspec  # noqa: PLC0415 - see above

    from perseid.client.remotes import InvalidRemote, check_name, is_native, save_remote  # noqa: PLC0415

    host = urlsplit(f"//{server}" if is_native(server) else server).hostname
    name = name or (host or server).replace(":", "-").lstrip("-")
    try:
        check_name(name)
    except InvalidRemote as problem:
        raise typer.BadParameter(str(problem), param_hint="--name") from problem
    remote = read_options(server, acting_as, token_file, secret_file, key_file, ca_file, fingerprint)
    proxy = "" if proxy is None else _read_proxy(proxy, server)
    remote = msgspec.structs.replace(remote, proxy=proxy, timeout=float(timeout or 0))
    remote = _pin_key(remote) if remote.is_native else _trust(remote)
    if not (remote.token or remote.identity):
        remote = _ask_for_token(remote)
    identity = _identify(remote)
    save_remote(name, remote, os.environ)
    fields = {"remote": name, "server": remote.server, "identity": identity}
    if json:
        print_json(fields)
        return
    print_fields(fields)
    print_message(f"To use it: --remote {name}, or {REMOTE_VARIABLE}={name}")


def logout(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the saved server.")], json: AsJson = False
) -> None:
    """Remove a saved server and its credentials from this machine. A token stays valid: see `perseid token revoke`.

    `perseid whoami --all` lists the saved servers.

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
        if os.environ.get(REMOTE_VARIABLE) == name:
            print_message(f"Commands still look for it: unset {REMOTE_VARIABLE}")


def whoami(
    all_: Annotated[
        bool, typer.Option("--all", help="List the saved servers instead; nothing is sent to them.")
    ] = False,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show where you work, and as whom; a server checks your credentials. With `--all`, list the saved servers.

    For example:
        perseid whoami
        perseid whoami --as 300:0.NA/102.100.272 --json
    """
    if all_:
        _list_remotes(json)
        return
    connect = REMOTE.get()
    if connect is None:
        from perseid.registry.installation.settings import FILE_NAME  # noqa: PLC0415 - see above

        folder = resolve_directory(directory).resolve()
        where, identity = str(folder), str(get_identity(acting_as))
        if not (folder / FILE_NAME).exists():
            other = "name another directory with -d DIR or PERSEID_DIR"
            print_message(f"No installation in {printable(where)}; {other}, or create one with: perseid init")
    else:
        remote: Remote = connect.args[0]  # type: ignore[attr-defined] # a partial call of `connect` below
        where, identity = remote.server, _identify(remote)
    if json:
        print_json({"server" if connect else "directory": where, "identity": identity})
    else:
        print_fields({"server" if connect else "directory": where, "identity": identity})


def _list_remotes(json: bool) -> None:
    """Print the saved servers; one whose file is damaged is reported."""
    from perseid.client.remotes import InvalidRemote, list_remotes, load_remote  # noqa: PLC0415 - see above

    rows: list[tuple[str, str, str]] = []
    for name in list_remotes(os.environ):
        try:
            remote = load_remote(name, os.environ)
        except InvalidRemote as problem:
            print_message(f"{name}: {problem}. To remove it: perseid logout {name}")
            continue
        rows.append((name, remote.server, remote.identity or ("token" if remote.token else "anonymous")))
    if not rows:
        print_message("No server is saved. To save one: perseid login SERVER")
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    for name, server, identity in rows:
        if json:
            print_json({"remote": name, "server": server, "identity": identity})
        else:
            print_text(f"{name:<{widths[0]}}  {server:<{widths[1]}}  {identity}")


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
    fingerprint: str | None,
) -> "Remote":
    """Read the options for a server. The key of a native server is that of a saved one with the same address."""
    from perseid.client.remotes import (  # noqa: PLC0415 - see above
        InvalidRemote,
        Remote,
        find_server_key,
        is_native,
        parse_address,
        read_secret,
    )

    if sum(file is not None for file in (token_file, secret_file, key_file)) > 1:
        raise typer.BadParameter("use only one of --token-file, --secret-file and --key-file")
    if (acting_as is None) != (secret_file is None and key_file is None):
        raise typer.BadParameter("use --as INDEX:HANDLE together with --secret-file or --key-file", param_hint="--as")
    if acting_as is not None:
        acting_as = str(parse_value_ref(acting_as, "--as"))
    if fingerprint is not None and ca_file is not None:
        raise typer.BadParameter("cannot be used with --ca-file", param_hint="--fingerprint")
    if "@" in server:
        raise typer.BadParameter("must not contain credentials: use --token-file, or --as", param_hint="SERVER")
    if is_native(server):
        for option, file in (("--token-file", token_file), ("--ca-file", ca_file)):
            if file is not None:
                raise typer.BadParameter(f"is for the HTTP API: name the server as https://{server}", param_hint=option)
    try:
        server_key = find_server_key(parse_address(server), os.environ) if is_native(server) else ""
        return Remote(
            server,
            acting_as or "",
            "" if token_file is None else read_secret(token_file),
            "" if secret_file is None else read_secret(secret_file),
            "" if key_file is None else str(key_file.resolve()),
            "" if ca_file is None else str(ca_file.resolve()),
            fingerprint or "",
            "" if fingerprint else server_key,
        )
    except InvalidRemote as problem:
        raise CommandFailed(str(problem)) from problem


def connect(remote: "Remote") -> "Client":
    """Return a client of the HTTP API; nothing is sent yet."""
    if remote.is_native:
        from ._native import refuse_native  # noqa: PLC0415 - see above

        raise refuse_native()
    try:
        return remote.connect()
    except ValueError as problem:
        raise CommandFailed(str(problem)) from problem


def connect_native(remote: "Remote") -> "NativeTarget":
    """Return a native server; nothing is sent yet, unless its key has to be compared with a fingerprint."""
    from ._native import NativeTarget  # noqa: PLC0415 - see above

    try:
        return NativeTarget(remote.connect_native())
    except ValueError as problem:
        raise CommandFailed(str(problem)) from problem


def _read_proxy(url: str, server: str) -> str:
    """Check the URL of a proxy, and ask for the password of its user: the command line is not secret."""
    from perseid.client.api_http import Proxy  # noqa: PLC0415 - see above
    from perseid.client.remotes import is_native  # noqa: PLC0415

    if is_native(server):
        raise typer.BadParameter(f"is for the HTTP API: name the server as https://{server}", param_hint="--proxy")
    try:
        Proxy.parse(url)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--proxy") from problem
    parts = urlsplit(url)
    if parts.password is not None:
        raise typer.BadParameter("must not contain a password: use http://USER@HOST:PORT", param_hint="--proxy")
    if parts.username is None:
        return url
    if not is_terminal(sys.stdin):
        raise CommandFailed("The password of the proxy is missing", "Run the command on a terminal, which asks for it")
    password = quote(_ask("Password of the proxy: "), safe="")
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{password}@{host}").geturl()


def _pin_key(remote: "Remote") -> "Remote":
    """Pin the key of a native server if it has the expected fingerprint, or if the user accepts it."""
    import msgspec  # noqa: PLC0415 - see above

    from perseid.client.remotes import fetch_key, has_fingerprint  # noqa: PLC0415
    from perseid.records.encoding import to_base64  # noqa: PLC0415

    if not remote.identity:
        raise CommandFailed("Credentials required", "Use --as INDEX:HANDLE with --secret-file FILE or --key-file FILE")
    key = fetch_key(remote.address, remote.timeout)
    pinned = msgspec.structs.replace(remote, server_key=to_base64(key.to_bytes()), fingerprint="")
    if remote.fingerprint and not has_fingerprint(key, remote.fingerprint):
        advice = "Ask its operator: `perseid key list` shows it on the server"
        raise CommandFailed(f"{remote.server} has the key {key.fingerprint}, not the expected one", advice)
    if remote.fingerprint or pinned.server_key == remote.server_key:
        return pinned
    digest = key.fingerprint.rpartition(" ")[2]
    what = "another key than the saved one" if remote.server_key else "a key that is not known yet"
    statement = f"{remote.server} has {what}: {key.fingerprint}"
    if not is_terminal(sys.stdin):
        raise CommandFailed(statement, f"If its operator confirms it: --fingerprint {digest}")
    print_message("Compare the key with the one that the operator of the server tells you.")
    confirm(statement)
    return pinned


def _trust(remote: "Remote") -> "Remote":
    """Pin the certificate of the server if it is not trusted and the user accepts it."""
    import msgspec  # noqa: PLC0415 - see above

    from perseid.client.api_exchange import Origin  # noqa: PLC0415
    from perseid.client.remotes import find_untrusted, format_fingerprint  # noqa: PLC0415

    try:
        origin = Origin.parse(remote.server)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="SERVER") from problem
    if remote.fingerprint or remote.proxy or not origin.is_https:
        return remote
    found = find_untrusted(origin.host, origin.port, Path(remote.ca_file) if remote.ca_file else None)
    if found is None:
        return remote
    statement = f"The certificate of {origin.url} is not trusted: {found.reason}"
    if remote.ca_file:
        raise CommandFailed(statement, f"Use the certificate of its authority instead of {remote.ca_file}")
    if not is_terminal(sys.stdin):
        advice = (
            f"If its operator confirms it: --fingerprint {found.fingerprint}. Or trust an authority: --ca-file FILE"
        )
        raise CommandFailed(statement, advice)
    print_message(f"The certificate has the SHA-256 fingerprint {format_fingerprint(found.fingerprint)}.")
    print_message("Compare it with the one that the operator of the server tells you.")
    confirm(statement)
    return msgspec.structs.replace(remote, fingerprint=found.fingerprint)


def _ask_for_token(remote: "Remote") -> "Remote":
    import msgspec  # noqa: PLC0415 - see above

    if not is_terminal(sys.stdin):
        raise CommandFailed(
            "Credentials required", "Use --token-file FILE, or --as INDEX:HANDLE with --secret-file FILE"
        )
    token = _ask("Token: ").strip()
    if not token:
        raise CommandFailed("Nothing was saved")
    return msgspec.structs.replace(remote, token=token)


def _ask(prompt: str) -> str:
    """Ask for a text that is not shown. After Ctrl-C the next message starts on its own line."""
    try:
        return getpass(prompt)
    except KeyboardInterrupt:
        print_message("")
        raise


def _identify(remote: "Remote") -> str:
    """Let the server check the credentials, and return the identity."""
    from perseid.registry.access.token_records import InvalidToken, Secret  # noqa: PLC0415 - see above

    if remote.is_native:
        with connect_native(remote) as target:
            target.identify(is_anonymous=not remote.identity)
        return remote.identity or "anonymous"
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
