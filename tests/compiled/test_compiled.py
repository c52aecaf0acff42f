"""The optional compiled module, where it is used or not."""

import os
from typing import TYPE_CHECKING

from perseid.compiled import PROBLEM, find_newer_source

if TYPE_CHECKING:
    from pathlib import Path


def test_module_older_than_a_source_is_not_used(tmp_path: "Path") -> None:
    module, source = tmp_path / "_native.so", tmp_path / "udp.c"
    for path, changed in ((module, 100), (source, 99)):
        path.touch()
        os.utime(path, (changed, changed))
    assert find_newer_source(module) == ""
    os.utime(source, (101, 101))
    assert find_newer_source(module) == "udp.c"


def test_module_of_this_checkout_is_used() -> None:
    assert PROBLEM == ""
