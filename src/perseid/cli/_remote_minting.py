"""`perseid mint` and `perseid reserve` on a server: requests of bounded size, printed one after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from perseid.client.errors import ClientError, NotFound, ProtocolError
from perseid.records.encoding import to_base64
from perseid.registry.commands.records import PartialValue
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.types import is_foreign_type, is_named_type
from perseid.schema.records import MAX_NAMES, Data, MintedHandles, ValueInput

from ._output import progress

if TYPE_CHECKING:
    from perseid.client import Client

MAX_REQUEST_BYTES: Final = 1 << 19
"""Bytes of values in one request: a body has at most 1 MiB, in which data is in base64."""


@dataclass(frozen=True, slots=True)
class RemoteOrder:
    """Identifiers to mint on a server."""

    prefix: str
    count: int
    values: tuple[PartialValue, ...] = ()
    rows: Callable[[int], Sequence[PartialValue]] | None = None
    """The further values of each record by its number, from 0."""
    metadata: tuple[PartialValue, ...] | None = None
    reserve: bool = False
    published: bool = True
    owner: str | None = None
    note: str = ""

    def mint(self, client: "Client", show: Callable[[MintedHandles], None]) -> None:
        """Mint the identifiers and show those of each response."""
        if self.reserve and (self.values or self.rows or self.metadata is not None):
            raise typer.BadParameter("a reserved identifier has no values; add them later", param_hint="--reserve")
        done = 0
        try:
            with progress("minting", self.count, "identifiers", prints=True) as update:
                for number, rows in self._requests():
                    remaining = number
                    while remaining:  # a response can have fewer
                        minted = self._send(client, remaining, rows)
                        show(minted)
                        done += len(minted.handles)
                        update(done)
                        if not 0 < len(minted.handles) <= remaining:  # never mint on and on
                            raise ProtocolError(
                                f"The server minted {len(minted.handles):,} of {remaining:,} identifiers"
                            )
                        remaining = 0 if rows else remaining - len(minted.handles)
        except ClientError as problem:
            if done:
                problem.add_note(f"The {done:,} of {self.count:,} identifiers that were printed are minted")
            raise

    def _send(self, client: "Client", count: int, rows: Sequence[tuple[ValueInput, ...]]) -> MintedHandles:
        if self.reserve:
            return client.reserve(self.prefix, count=count, owner=self.owner, note=self.note)
        return client.mint(
            self.prefix,
            to_inputs(self.values),
            count=None if rows else count,
            records=rows,
            metadata=None if self.metadata is None else to_inputs(self.metadata),
            published=self.published,
            owner=self.owner,
            note=self.note,
        )

    def _requests(self) -> Iterator[tuple[int, Sequence[tuple[ValueInput, ...]]]]:
        """Yield the number of identifiers of each request, and the values of their rows."""
        most = MAX_NAMES if self.metadata is None else MAX_NAMES // 2
        if self.rows is None:
            yield from ((min(most, self.count - first), ()) for first in range(0, self.count, most))
            return
        batch: list[tuple[ValueInput, ...]] = []
        size = 0
        for number in range(self.count):
            row = self.rows(number)
            length = sum(len(value.data) + len(value.type) for value in row)
            if batch and (len(batch) == most or size + length > MAX_REQUEST_BYTES):
                yield len(batch), batch
                batch, size = [], 0
            batch.append(to_inputs(row))
            size += length
        if batch:
            yield len(batch), batch


def to_inputs(values: Iterable[PartialValue]) -> tuple[ValueInput, ...]:
    """Convert values of a command for a request; the server chooses what they leave out."""
    return tuple(
        [
            ValueInput(
                value.type,
                Data("base64", to_base64(value.data)),
                value.index,
                None if value.permissions is None else f"{value.permissions:04b}",
            )
            for value in values
        ]
    )


def load_policy(client: "Client", where: str) -> Policy:
    """Return the policy of the namespace in which identifiers will be minted."""
    return Policy.from_stored(client.policy(where.partition("/")[0]).policy)


def is_known_type(client: "Client", policy: Policy, type_: str) -> bool:
    """Whether a type is named by the policy, a registered handle, or one of another service."""
    if is_named_type(policy, type_):
        return True
    try:
        return "/" in type_ and bool(client.type(type_).handle)
    except NotFound as missing:
        return missing.problem_type == "prefix-not-hosted" and is_foreign_type(type_)
