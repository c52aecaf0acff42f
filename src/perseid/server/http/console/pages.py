"""All pages of the console."""

from typing import Final

from .access import ACCESS, TOKENS
from .dashboard import DASHBOARD
from .editing import EDITING
from .imports import IMPORTS
from .jobs import JOBS, REWRITE, TRANSFER
from .log import LOG
from .namespaces import NAMESPACES
from .records import RECORDS
from .routing import Pages
from .sign_in import SIGN_IN
from .statistics import STATISTICS

SECTIONS: Final[tuple[Pages, ...]] = (
    *(SIGN_IN, DASHBOARD),
    *(EDITING, RECORDS),
    *(IMPORTS, REWRITE, TRANSFER, JOBS, LOG, STATISTICS),
    *(NAMESPACES, ACCESS, TOKENS),
)
"""In the order in which paths are tried: those with fixed segments first."""
