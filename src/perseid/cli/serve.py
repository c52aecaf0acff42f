"""`perseid serve`: answer over the network.

The command looks at the settings and then becomes the supervisor, which is small and stays so: nothing that the command
line has loaded stays in memory.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from perseid.registry.installation.setting_http import Listen
from perseid.registry.installation.setting_keys import MAX_RESOLVERS, variable_name
from perseid.registry.installation.settings import FILE_NAME, Config
from perseid.server.processes.supervisor import ServerOptions

from ._directory import Directory, directory_of
from ._output import AsJson

LISTENING: Final = "Serving the native protocol at {host} port {port}, over UDP and TCP; metrics at {metrics}."
HTTP: Final = "Serving HTTP at {http}"
STOP: Final = "Stop with Ctrl-C."

_SCHEMES: Final = {Listen.BOTH: ("http", "https"), Listen.HTTP: ("http",), Listen.HTTPS: ("https",)}

_COMMANDS_TO_TRY = """
What to try, in another terminal:

    perseid list 102.100.272{option}
    perseid resolve 102.100.272/D7J1G0DQH{option}
    perseid mint 102.100.272 --url https://example.org/new{option}
    perseid history 102.100.272/D7J1G0DQH{option}
"""
_URLS_TO_TRY = """
What to click:

    {address}
    {address}102.100.272/D7J1G0DQH
    {address}api/handles/102.100.272/D7J1G0DQH
"""


def serve(  # noqa: PLR0913 - options
    *,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 or :: is every address.")
    ] = None,
    native_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65_535, help="Of the native protocol, UDP and TCP; 0 is any free one."),
    ] = None,
    http_host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen for HTTP, if that is elsewhere.")
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65_535, help="Of HTTP and HTTPS; 0 is any free one."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65_535, help="Of the metrics; 0 is any free one."),
    ] = None,
    resolvers: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=MAX_RESOLVERS, help="Processes that answer UDP; 0 is one for each core."),
    ] = None,
    init_demo: Annotated[
        bool, typer.Option("--init-demo", help="Make the demonstration first, if there is no installation yet.")
    ] = False,
    accept_clock: Annotated[
        bool, typer.Option("--accept-clock", help="Take the clock as it stands, after you have looked at it.")
    ] = False,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Answer over the native protocol and over HTTP until stopped.

    Ctrl-C and SIGTERM finish what was begun; SIGHUP reads settings, keys, certificates and site information again.
    Options go before the settings of the installation. With --json one line tells when and where it is ready.

    For example:
        perseid serve
        perseid serve --host 0.0.0.0 --resolvers 4
        perseid serve -d trial --init-demo --native-port 0 --http-port 0 --metrics-port 0
    """
    target = directory_of(directory).resolve()
    _set_environment({"native.host": host, "native.port": native_port, "server.resolvers": resolvers})
    _set_environment({"http.host": http_host or host, "http.port": http_port, "metrics.port": metrics_port})
    # What makes or opens an installation is loaded where it is needed: others begin to serve in half the time.
    if init_demo and not (target / FILE_NAME).exists():
        from .installation import init  # noqa: PLC0415

        init(target, demo=True, json=json)
    if not (target / FILE_NAME).is_file():
        from perseid.registry.installation.installation import NoInstallation  # noqa: PLC0415

        raise NoInstallation(target)
    found = Config.load(target, os.environ)
    plan = ServerOptions(
        directory=str(target),
        host=found.native_host,
        port=found.native_port,
        resolvers=found.server_resolvers or len(os.sched_getaffinity(0)),
        accept_clock=accept_clock,
        log_format=found.log_format.value,
        log_level=found.log_level,
        as_json=json,
        startup_lines=_welcome_lines(target, found, init_demo=init_demo),
        http_host=found.http_host if found.http_enabled else "",
        http_port=found.http_port,
        http_schemes=_SCHEMES[found.http_listen],
    )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "perseid.server.processes.supervisor", plan.to_json()])  # noqa: S606 - ours


def _set_environment(options: dict[str, str | int | None]) -> None:
    """Options are settings for all processes of the server: its environment carries them."""
    for name, value in options.items():
        if value is not None:
            os.environ[variable_name(name)] = str(value)


def _welcome_lines(target: Path, found: Config, *, init_demo: bool) -> tuple[str, ...]:
    """What is said at the start, with places for what is known only then."""
    lines = [LISTENING]
    if found.http_enabled:
        lines.append(HTTP)
    if init_demo:
        default = directory_of(None).resolve()
        option = "" if target == default else f" -d {target}"
        # Braces in a path are not places for host and port.
        lines += _COMMANDS_TO_TRY.format(option=option.replace("{", "{{").replace("}", "}}")).splitlines()
        if found.http_enabled:
            lines += _URLS_TO_TRY.format(address="{http_first}").splitlines()
    return (*lines, STOP)


commands: dict[str, Callable[..., None] | typer.Typer] = {"serve": serve}
