"""The supervisor kills the process that others wait for, and not those."""

from types import SimpleNamespace
from typing import Any

from perseid.server.processes.supervisor import Child, choose_stuck


def test_process_inside_a_change_of_the_shared_state_is_killed_first() -> None:
    processes: list[Any] = [SimpleNamespace(pid=11), SimpleNamespace(pid=12), None]
    stuck = [Child(f"worker-{number}", "", {}, (), process=each) for number, each in enumerate(processes)]
    assert choose_stuck(stuck, 12) == [stuck[1]]
    assert choose_stuck(stuck, 77) == stuck, "nobody waits for a process that is gone"
    assert choose_stuck([], 12) == []
