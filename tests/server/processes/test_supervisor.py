"""The supervisor kills the process that others wait for, and not those."""

import pytest

from perseid.server.processes.supervisor import Child, choose_stuck


@pytest.mark.parametrize(
    ("silences", "last_writer", "killed"),
    [
        ((0.1, 4.9, 0.1), 11, []),
        ((0.1, 5.1, 0.1), 77, ["worker-1"]),
        ((1.1, 1.1, 0.1), 11, ["worker-1"]),  # the other one waits for it
        ((1.1, 1.1, 0.1), 77, []),
        ((5.1, 5.1, 5.1), 11, ["worker-1"]),
        ((5.1, 5.1, 5.1), 77, ["worker-0", "worker-1", "worker-2"]),  # nobody waits for a process that is gone
    ],
)
def test_process_inside_a_change_of_the_shared_state_is_killed_first(
    silences: tuple[float, ...], last_writer: int, killed: list[str]
) -> None:
    children = [
        Child(f"worker-{number}", "", {}, pid=10 + number, is_ready=True, silence=silence)
        for number, silence in enumerate(silences)
    ]
    children.append(Child("worker-3", "", {}, silence=100.0))  # it is not running
    children.append(Child("worker-4", "", {}, pid=14, silence=100.0))  # it is starting
    assert [child.name for child in choose_stuck(children, lambda: last_writer)] == killed
