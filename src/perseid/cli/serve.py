"""`perseid serve`: run the server.

The command reads the settings and then replaces itself with the supervisor (`exec`), so that nothing loaded by the
command line stays in memory.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from perseid.compiled import describe
from perseid.registry.installation.files import has_several_servers
from perseid.registry.installation.sections import MAX_WORKERS
from perseid.registry.installation.settings import FILE_NAME, Config, variable_name
from perseid.server.processes import CHILD_SIGNALS, fork_server
from perseid.server.processes.supervisor import ServerOptions

from ._common_options import Directory, format_directory_option, program, resolve_directory
from ._output import AsJson

LISTENING: Final = "Serving the native protocol at {host} port {port}, over UDP and TCP"
METRICS: Final = "; metrics at {metrics}"
RESOLUTION: Final = "Public resolution over UDP and TCP runs {how}."
HTTP: Final = "Serving HTTP at {http}"
STOP: Final = "Stop with Ctrl-C."

_SCHEMES: Final = {"both": ("http", "https"), "http": ("http",), "https": ("https",)}

_COMMANDS_TO_TRY = """
Try these commands in another terminal:

    {program} list 102.100.272{option}
    {program} resolve 102.100.272/D7J1G0DQH{option}
    {program} mint 102.100.272 --url https://example.org/new{option}
    {program} history 102.100.272/D7J1G0DQH{option}
"""
_URLS_TO_TRY = """
Open these pages:

    {address}
    {address}102.100.272/D7J1G0DQH
    {address}api/handles/102.100.272/D7J1G0DQH
    {address}console
"""


def serve(  # noqa: PLR0913 - options
    *,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The address to listen on; 0.0.0.0 or :: for all.")
    ] = None,
    native_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65_535, help="The port of the native protocol, UDP and TCP; 0 for a free port."
        ),
    ] = None,
    http_host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The address for HTTP. Default: --host.")
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65_535, help="The port of HTTP and HTTPS; 0 for a free port."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65_535, help="The port of the metrics; 0 for a free port."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=MAX_WORKERS, help="The number of worker processes; 0 for one per core."),
    ] = None,
    init_demo: Annotated[
        bool, typer.Option("--init-demo", help="Create a demonstration first, if there is no installation.")
    ] = False,
    accept_clock: Annotated[
        bool, typer.Option("--accept-clock", help="Accept the system clock, after you have checked it.")
    ] = False,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Run the server, over the native protocol and HTTP, until it is stopped.

    On Ctrl-C and SIGTERM the server finishes open requests; on SIGHUP it reloads settings, keys, certificates and site
    information. Options override the settings. With --json, one line says when the server is ready, and its addresses.

    For example:
        perseid serve
        perseid serve --host 0.0.0.0 --workers 4
        perseid serve -d trial --init-demo --native-port 0 --http-port 0 --metrics-port 0
    """
    target = resolve_directory(directory).resolve()
    _set_environment({"native.host": host, "native.port": native_port, "server.workers": workers})
    _set_environment({"http.host": http_host or host, "http.port": http_port, "metrics.port": metrics_port})
    # Imported only if needed: otherwise the server starts in half the time.
    is_new = init_demo and not (target / FILE_NAME).exists()
    if is_new:
        from .installation import init  # noqa: PLC0415

        init(target, demo=True, json=json)
    if not (target / FILE_NAME).is_file():
        from perseid.registry.installation.installation import NoInstallation  # noqa: PLC0415

        raise NoInstallation(target)
    config = Config.load(target, os.environ)
    sys.stdout.flush()  # before the process is forked and replaced
    signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_SIGNALS)  # until the supervisor has handlers
    options = ServerOptions(
        directory=str(target),
        host=config.native.host,
        port=config.native.port,
        workers=config.server.workers or len(os.sched_getaffinity(0)),
        accept_clock=accept_clock,
        log_format=config.log.format,
        log_level=config.log.level_number,
        as_json=json,
        startup_lines=_welcome_lines(target, config, init_demo=init_demo),
        http_host=config.http.host if config.http.enabled else "",
        http_port=config.http.port,
        http_schemes=_SCHEMES[config.http.listen],
        metrics_host=config.metrics.host if config.metrics.enabled else "",
        metrics_port=config.metrics.port,
        # A process that has opened a ledger and created keys is not forked.
        fork_server=(0, -1) if is_new else fork_server.fork(),
    )
    pipe, writer = os.pipe()
    os.set_inheritable(pipe, True)
    os.write(writer, options.to_json().encode())
    os.execv(sys.executable, [sys.executable, "-P", "-m", "perseid.server.processes.supervisor", str(pipe)])  # noqa: S606 - ours


def _set_environment(options: dict[str, str | int | None]) -> None:
    """Pass options to all processes of the server as environment variables."""
    for name, value in options.items():
        if value is not None:
            os.environ[variable_name(name)] = str(value)


def _welcome_lines(target: Path, config: Config, *, init_demo: bool) -> tuple[str, ...]:
    """Return the startup messages, with format fields for addresses that are not known yet."""
    networks, several = len(config.limits.exempt_networks), has_several_servers(target)
    how = describe(enabled=config.native.compiled, exempt_networks=networks, several_servers=several)
    lines = [f"{LISTENING}{METRICS if config.metrics.enabled else ''}.", _escape(RESOLUTION.format(how=how))]
    if config.http.enabled:
        lines.append(HTTP)
    if init_demo:
        lines += _COMMANDS_TO_TRY.format(
            program=_escape(program()), option=_escape(format_directory_option(target))
        ).splitlines()
        if config.http.enabled:
            lines += _URLS_TO_TRY.format(address="{http_first}").splitlines()
    return (*lines, STOP)


def _escape(text: str) -> str:
    """Return a text whose braces are not format fields."""
    return text.replace("{", "{{").replace("}", "}}")


commands: dict[str, Callable[..., None] | typer.Typer] = {"serve": serve}
