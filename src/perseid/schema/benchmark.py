"""Figures of `perseid bench`."""

import msgspec


class BenchmarkRow(msgspec.Struct, frozen=True):
    """One measurement."""

    name: str
    per_second: float
    cpu_microseconds: float
    """CPU time of the server for each, user and system."""
    failed: int
    """Requests without a correct response."""


class BenchmarkReport(msgspec.Struct, frozen=True):
    """All measurements of a run."""

    records: int
    cores: int
    start_seconds: float
    """From the start of the program to the first possible request."""
    memory_mib: float
    """Memory of all processes after the load, without mapped files."""
    rows: tuple[BenchmarkRow, ...]
