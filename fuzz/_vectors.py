"""The recorded resolutions, answered by the compiled module under valgrind: `valgrind … python fuzz/_vectors.py`.

Valgrind has no room for the map of the answers view, so that is smaller here.
"""

import os
import sys
from pathlib import Path

import pytest

from perseid.ledger.views.answers import Answers

MAP_SIZE = 1 << 24
TESTS = "tests/server/native/test_resolution_vectors.py"

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    os.chdir(root)
    sys.path.insert(0, str(root))
    defaults = Answers.__init__.__kwdefaults__
    assert defaults is not None
    defaults["map_size"] = MAP_SIZE
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", TESTS]))
