"""What `perseid check` finds about bearer tokens: those that nobody seems to need, and what a restore did to them."""

from collections.abc import Iterator, Sequence
from typing import Final

from perseid.ledger.log.signing import branch_of
from perseid.registry.access.tokens import DAY, Listed

from ._findings import Finding, Level
from ._place import Place
from .tokens import every

UNUSED_DAYS: Final = 60
"""Days without any use after which a token is worth a question: two months, which most programs do not pause."""

_NAMED: Final = 5


def token_findings(place: Place) -> Iterator[Finding]:
    """What there is to say about the tokens of an installation; nothing, if there never were any."""
    now = place.registry.now()
    tokens = list(every(place))
    if not tokens:
        return
    counting = [item for item in tokens if item.counts(now)]
    unused = [item for item in counting if now - max(item.used or 0, item.token.created) >= UNUSED_DAYS * DAY]
    if unused:
        message = f"nobody has used {_ids(unused)} for {UNUSED_DAYS} days"
        yield Finding("tokens", Level.NOTE, message, "end what nobody needs: perseid token revoke TOKEN")
    branch = branch_of(place.registry.ledger.log)
    older = [] if branch is None else [item for item in counting if item.seq <= branch.continued.size]
    if older:
        message = f"{_ids(older)} counted when the backup was made; what was revoked after that counts again"
        yield Finding("tokens", Level.NOTE, message, "look at them: perseid token list; and revoke them again")
    expired = sum(item.state(now) == "expired" for item in tokens)
    ended = f", {expired:,} have expired" if expired else ""
    yield Finding("tokens", Level.OK, f"{len(counting):,} count{'s' if len(counting) == 1 else ''}{ended}")


def _ids(items: Sequence[Listed]) -> str:
    named = ", ".join([item.token.id for item in items[:_NAMED]])
    return named if len(items) <= _NAMED else f"{named} and {len(items) - _NAMED:,} more"
