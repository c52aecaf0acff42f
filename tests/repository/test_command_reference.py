"""The list of commands is generated from the program."""

from command_reference import PAGE, page


def test_the_list_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: python tools/command_reference.py"
