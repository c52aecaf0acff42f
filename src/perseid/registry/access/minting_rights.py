"""Who may make names in a namespace: the policy's rule (S13), for every way of making one."""

from perseid.names.handle import Handle
from perseid.registry.context import Context
from perseid.registry.policy.keys import Audience
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Refused

from . import permissions
from .permissions import HasRole, Requirement, Role, display_name
from .scopes import RequiredScope, Scope


def require_mint(context: Context, policy: Policy, prefix: str, scope: Scope = Scope.MINT) -> None:
    """Refuse whoever may not make names under a prefix, by the policy's rule."""
    try:
        context.require(making(policy, prefix, scope))
    except Refused as refused:
        line = policy.line("who_may_mint")
        reason = f"{refused.reason}; the policy of this namespace says: {line}"
        raise Refused(refused.code, reason, refused.advice, line) from refused


def making(policy: Policy, prefix: str, scope: Scope = Scope.MINT) -> Requirement:
    """What making names under a prefix demands (S13). Server administrators always may."""
    action, required_scope = f"make names under {display_name(prefix)}", RequiredScope.for_namespace(prefix, scope)
    servers = (HasRole((Role.SERVER,)),)
    if policy.who_may_mint is Audience.AUTHENTICATED:
        return Requirement(action, ((),), required_scope=required_scope)
    if policy.who_may_mint is Audience.SERVER:
        return Requirement(action, (servers,), required_scope=required_scope)
    return Requirement(
        action, (*permissions.create(Handle(prefix, "…")).alternatives, servers), required_scope=required_scope
    )
