"""Commands whose standard streams are closed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from perseid.server.state.runtime import read_details
from tests.server.installations import copy_to
from tests.server.processes.test_processes import eventually
from tests.server.running import DEFAULTS, STOP_SECONDS

CLOSED: Final = 'exec "$@" <&- >&- 2>&-'


def test_no_socket_of_a_server_has_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    serve = [sys.executable, "-c", "from perseid.cli import main; main()", "serve", "-d", str(directory)]
    with subprocess.Popen(["/bin/sh", "-c", CLOSED, "sh", *serve], env=os.environ | DEFAULTS) as process:
        try:
            eventually(lambda: process.poll() is not None or read_details(directory) is not None, "it starts")
            assert process.poll() is None
            descriptors = Path(f"/proc/{process.pid}/fd")
            assert {str((descriptors / str(number)).readlink()) for number in range(3)} == {os.devnull}
        finally:
            process.terminate()
        assert process.wait(STOP_SECONDS) == 0
