"""How help looks: a flag shows no type, and an argument stands in the usage as people write it."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command; every one is made with this class."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options."""
        return _without_types_of_flags(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line; typer would put a required argument into braces."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


class Group(TyperGroup):
    """A group of commands; every one is made with this class."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options."""
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params
