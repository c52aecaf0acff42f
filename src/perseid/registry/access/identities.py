"""Identities as users write them."""

from perseid.names.handle import Handle


def complete_identity(text: str, on: str) -> str:
    """Return the identity that a text means where rights on a prefix or handle are given or taken.

    The bare name of a user, such as `ann`, is the handle of that name under the prefix; everything else is returned as
    it is.
    """
    if not text or "/" in text or ":" in text:
        return text
    handle = Handle.for_lookup(on)
    prefix = on if handle is None else handle.suffix if handle.is_prefix_handle else handle.prefix
    return f"{prefix}/{text}"
