"""One target in a process of its own: `_child.py MODULE CORPUS [options of libFuzzer]`.

If CORPUS is a file, it is the only input and tried once.
"""

import hashlib
import importlib
import sys
from pathlib import Path

import atheris


def main() -> None:
    """Load the module with its decoders instrumented and let libFuzzer call it; it ends the process itself."""
    program, module, corpus, *options = sys.argv
    with atheris.instrument_imports(include=["perseid", module]):
        target = importlib.import_module(module)
    inputs = Path(corpus)
    if inputs.is_dir():
        for seed in getattr(target, "SEEDS", ()):
            (inputs / hashlib.sha256(seed).hexdigest()[:40]).write_bytes(seed)
        if words := getattr(target, "WORDS", ()):
            dictionary = inputs.with_suffix(".dict")
            dictionary.write_text("".join(map(_entry, words)))
            options.append(f"-dict={dictionary}")
    atheris.Setup([program, corpus, *options], target.fuzz)
    atheris.Fuzz()


def _entry(word: bytes) -> str:
    """A line of libFuzzer's dictionary."""
    return '"' + "".join(f"\\x{octet:02x}" for octet in word) + '"\n'


if __name__ == "__main__":
    main()
