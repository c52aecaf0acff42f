"""Who may make names in a namespace: the policy's rule (S13), for every way of making one."""

from perseid.names.handle import Handle
from perseid.registry.context import Context
from perseid.registry.policy.keys import Who
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Refused

from . import permissions
from .permissions import Demand, Membership, Role, shown
from .scopes import Reach, Word


def demand_making(context: Context, policy: Policy, prefix: str, word: Word = Word.MINT) -> None:
    """Refuse whoever may not make names under a prefix, by the policy's rule."""
    try:
        context.demand(making(policy, prefix, word))
    except Refused as refused:
        line = policy.line("who_may_mint")
        reason = f"{refused.reason}; the policy of this namespace says: {line}"
        raise Refused(refused.code, reason, refused.advice, line) from refused


def making(policy: Policy, prefix: str, word: Word = Word.MINT) -> Demand:
    """What making names under a prefix demands (S13). Server administrators always may."""
    action, reach = f"make names under {shown(prefix)}", Reach.under(prefix, word)
    servers = (Membership((Role.SERVER,)),)
    if policy.who_may_mint is Who.AUTHENTICATED:
        return Demand(action, ((),), reach=reach)
    if policy.who_may_mint is Who.SERVER:
        return Demand(action, (servers,), reach=reach)
    return Demand(action, (*permissions.create(Handle(prefix, "…")).alternatives, servers), reach=reach)
