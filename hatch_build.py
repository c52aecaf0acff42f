"""Compiles `perseid.compiled` while a wheel is built, if there are a C compiler and LMDB's header file.

PERSEID_BUILD in the environment: `auto` (default), `compiled` (fail if it cannot be compiled) or `pure` (do not try).
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE: Final = "PERSEID_BUILD"
MODULE: Final = "perseid.compiled._native"
SOURCES: Final = Path("src", "perseid", "compiled")

_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-g0", "-fvisibility=hidden", "-pthread")
"""Without debug information, which contains paths: the same files give the same bytes."""

_HARDENING = ("-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2")
_LINKER_HARDENING = ("-Wl,-z,relro", "-Wl,-z,now")
"""What distributions compile programs on the network with; Python's own flags may lack it."""


def compile_module(folder: Path, flags: tuple[str, ...] = (), link_flags: tuple[str, ...] = ()) -> Path:
    """Compile the module into a folder; return its path. Raises what setuptools raises if that is impossible."""
    from Cython.Build import cythonize  # noqa: PLC0415 - a wheel without it can be built, too
    from setuptools import Distribution, Extension  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    extension = Extension(
        MODULE,
        [str(SOURCES / "_native.pyx"), *sources],
        include_dirs=[str(SOURCES)],
        libraries=["lmdb"],
        depends=[str(path) for path in sorted(SOURCES.glob("*.h"))],
        extra_compile_args=[*_FLAGS, *_HARDENING, *flags],
        extra_link_args=["-pthread", *_LINKER_HARDENING, *link_flags],
    )
    with tempfile.TemporaryDirectory() as temporary:
        modules: list[Extension] = cythonize([extension], build_dir=temporary, quiet=True)  # type: ignore[no-untyped-call]
        command = build_ext(Distribution({"name": "perseid", "ext_modules": modules}))
        command.build_lib, command.build_temp = str(folder), temporary
        command.ensure_finalized()
        command.run()
        return Path(command.get_ext_fullpath(MODULE))


class CustomBuildHook(BuildHookInterface[Any]):
    """The hook that hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; without success the wheel is pure."""
        mode = os.environ.get(VARIABLE, "auto")
        if self.target_name != "wheel" or mode == "pure":
            return
        os.chdir(self.root)
        folder = Path("src") if version == "editable" else Path(self.directory, "compiled")
        try:
            built = compile_module(folder)
        except (Exception, SystemExit) as error:  # setuptools has many
            if mode == "compiled":
                raise
            self.app.display_warning(f"perseid.compiled was not compiled; Python does its work: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"][str(built)] = f"perseid/compiled/{built.name}"


if __name__ == "__main__":
    print(compile_module(Path(sys.argv[1])))
