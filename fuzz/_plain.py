"""A driver for machines without atheris: it mutates seeds at random, without coverage guidance.

It supports the libFuzzer options that `run.py` uses and prints the same reports. Without coverage it finds less.
"""

import hashlib
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

MAX_CHANGES = 4
"""Mutations per input; with more, parsers reject it at once."""

Target = Callable[[bytes], None]


def drive(target: Target, inputs: Path, words: Sequence[bytes], options: Sequence[str]) -> int:
    """Run one input file, or the inputs in a folder and mutations of them; return the exit code."""
    given = dict(option.lstrip("-").split("=", 1) for option in options)
    findings, longest, seconds = given.get("artifact_prefix", ""), int(given.get("max_len", 4096)), given.get("timeout")
    signal.signal(signal.SIGALRM, _too_slow)
    if inputs.is_file():
        return 0 if _survives(target, inputs.read_bytes(), seconds, findings) else 1
    pool = [path.read_bytes() for path in sorted(inputs.iterdir())] or [b""]
    random = Random(int(given["seed"]) if "seed" in given else None)  # noqa: S311 - not for secrets
    runs = int(given["runs"]) if "runs" in given else None
    end = time.monotonic() + float(given.get("max_total_time", "inf"))
    done = 0
    while done < runs if runs is not None else time.monotonic() < end:
        data = pool[done] if done < len(pool) else changed(random, pool, words)
        if not _survives(target, data[:longest], seconds, findings):
            return 1
        done += 1
    print(f"Done {done} runs")
    return 0


def _too_slow(*_: object) -> None:
    raise TimeoutError("the input takes too long")


def _survives(target: Target, data: bytes, seconds: str | None, findings: str) -> bool:
    """Whether the target handles the input; if not, save it and print the traceback."""
    signal.alarm(int(seconds or 0))
    try:
        target(data)
    except Exception:  # noqa: BLE001 - every kind of error is what we look for
        traceback.print_exc()
        if findings:
            Path(f"{findings}crash-{hashlib.sha256(data).hexdigest()[:40]}").write_bytes(data)
        return False
    finally:
        signal.alarm(0)
    return True


def changed(random: Random, pool: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return one of the inputs with some changes."""
    data = bytearray(random.choice(pool))
    for _ in range(random.randint(1, MAX_CHANGES)):
        start = random.randint(0, len(data))
        end = min(len(data), start + random.randint(0, 8))
        piece = random.choice(
            (
                b"",
                random.randbytes(random.randint(1, 4)),
                random.choice(words or [b""]),
                bytes(data[start:end]) * 2,
                random.choice(pool)[-random.randint(1, 64) :],
            )
        )
        data[start:end] = piece
    return bytes(data)
