"""One target in a process of its own: `_child.py DRIVER MODULE CORPUS [options of libFuzzer]`.

The driver `atheris` is guided by coverage; `plain` (see `_plain.py`) is not. If CORPUS is a file, it is the only input
and tried once.
"""

import hashlib
import importlib
import sys
from pathlib import Path
from types import ModuleType


def main() -> None:
    """Load the module and run the driver; atheris ends the process itself."""
    program, driver, module, corpus, *options = sys.argv
    inputs = Path(corpus)
    if driver == "plain":
        target = importlib.import_module(module)
        _write_seeds(target, inputs)
        drive = importlib.import_module("_plain").drive
        sys.exit(drive(target.fuzz, inputs, getattr(target, "WORDS", ()), options))

    import atheris  # noqa: PLC0415 - not every machine has it

    with atheris.instrument_imports(include=["perseid", module]):
        target = importlib.import_module(module)
    _write_seeds(target, inputs)
    words = getattr(target, "WORDS", ())
    if words and inputs.is_dir():
        dictionary = inputs.with_suffix(".dict")
        dictionary.write_text("".join(map(_entry, words)))
        options.append(f"-dict={dictionary}")
    atheris.Setup([program, corpus, *options], target.fuzz)
    atheris.Fuzz()


def _write_seeds(target: ModuleType, inputs: Path) -> None:
    """Add the target's seeds to the inputs, if these are a folder."""
    for seed in getattr(target, "SEEDS", ()) if inputs.is_dir() else ():
        (inputs / hashlib.sha256(seed).hexdigest()[:40]).write_bytes(seed)


def _entry(word: bytes) -> str:
    """A line of libFuzzer's dictionary."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n'


if __name__ == "__main__":
    main()
