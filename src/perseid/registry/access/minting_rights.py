"""Who can create handles in a namespace: the policy's rule (S13), for every way to create one."""

from perseid.names.handle import Handle
from perseid.registry.context import Context
from perseid.registry.policy.policy import Audience, Policy
from perseid.registry.results import Refused
from perseid.schema.namespaces import Scope

from . import permissions
from .permissions import HasRole, Requirement, Role, display_name
from .scopes import RequiredScope


def require_mint(context: Context, policy: Policy, prefix: str, scope: Scope = Scope.MINT) -> None:
    """Refuse a caller who cannot create handles under a prefix."""
    try:
        context.require(mint_requirement(policy, prefix, scope))
    except Refused as refused:
        line = policy.line("who_may_mint")
        reason = f"{refused.reason}; the policy of this namespace says: {line}"
        raise Refused(refused.code, reason, refused.advice, line) from refused


def mint_requirement(policy: Policy, prefix: str, scope: Scope = Scope.MINT) -> Requirement:
    """The requirement to create handles under a prefix (S13). Server administrators always can."""
    action = f"create handles under {display_name(prefix)}"
    required_scope = RequiredScope.for_namespace(prefix, scope)
    servers = (HasRole((Role.SERVER,)),)
    if policy.who_may_mint is Audience.AUTHENTICATED:
        return Requirement(action, ((),), required_scope=required_scope)
    if policy.who_may_mint is Audience.SERVER:
        return Requirement(action, (servers,), required_scope=required_scope)
    return Requirement(
        action, (*permissions.create(Handle(prefix, "…")).alternatives, servers), required_scope=required_scope
    )
