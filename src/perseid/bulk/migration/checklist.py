"""The checklist of a cut-over: what to do before, during and after, and how to go back.

The commands are those of this installation; `SOURCE` stands for the source with its options.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from perseid.schema.migration import ChecklistStep


class Phase(StrEnum):
    """A phase of the cut-over."""

    PREPARE = "prepare"
    CUT_OVER = "cut_over"
    FALL_BACK = "fall_back"


TITLES: Final = {
    Phase.PREPARE: "Before the cut-over",
    Phase.CUT_OVER: "Cut-over",
    Phase.FALL_BACK: "To fall back",
}


def make_checklist(source: str, directory: str, prefixes: Sequence[str]) -> list[ChecklistStep]:
    """Return the steps, in order. `source` is quoted for a shell."""
    names = ", ".join(prefixes) or "your prefixes"
    copy, own = f"perseid migrate copy {source} -d {directory}", f"-d {directory}"
    steps = {
        Phase.PREPARE: (
            ("Back up the directory and the database of the old server.", ""),
            (
                "If Perseid will have the address of the old server, take over its site information and key.",
                f"perseid migrate keys OLD_DIRECTORY {own}",
            ),
            ("Copy all records, and correct what the report lists.", f"{copy} --report report.jsonl"),
            ("Follow the old server until the cut-over, in a terminal or as a service.", f"{copy} --follow"),
            ("Check the installation, and resolve some handles at its own address.", f"perseid check {own}"),
            (f"If the address changes, lower the TTL of HS_SITE in the prefix handles of {names}.", ""),
        ),
        Phase.CUT_OVER: (
            ("Stop changes at the old server: announce it, and stop the programs that write. It still resolves.", ""),
            ("Stop the command that follows (Ctrl-C), and copy once more.", copy),
            (
                "Compare both servers. Exit code 0 means that every byte is the same.",
                f"perseid migrate compare {source} {own} --report differences.jsonl",
            ),
            ("Back up the new ledger, and note the number of its last entry.", f"perseid backup {own} ledger.backup"),
            ("Stop the old server, and start Perseid.", f"perseid serve {own}"),
            (f"If the address has changed, update HS_SITE in the prefix handles of {names} where they are hosted.", ""),
            ("Resolve some handles from another network, and make a test change.", ""),
            ("Keep the old server stopped, but complete, until you are sure.", ""),
        ),
        Phase.FALL_BACK: (
            ("Stop Perseid, and start the old server. If the address has changed, restore HS_SITE.", ""),
            (
                "List what was changed at Perseid since the cut-over, and repeat it at the old server.",
                f"perseid find {own} --changed-since ENTRY",
            ),
            ("When you try again, the old server has the newer records: overwrite those here.", f"{copy} --overwrite"),
        ),
    }
    rows = [(phase, *step) for phase, listed in steps.items() for step in listed]
    return [ChecklistStep(number, phase.value, *row) for number, (phase, *row) in enumerate(rows, 1)]
