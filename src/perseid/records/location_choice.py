"""Selection of one of several locations for a request.

Methods are applied in the order of the list. Each filters the candidates; one that would remove all of them is skipped.
At the end weights decide. The only randomness is a number passed as an argument: the same request with the same number
gives the same location.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from .locations import Candidate, Candidates, Method, parse_number

MAX_NETWORKS: Final = 100
"""Maximum number of networks per location; others are ignored."""

MAX_TOTAL_NETWORKS: Final = 2_000
"""Maximum number of networks of all locations: some hundredths of a second of work."""

Address: TypeAlias = IPv4Address | IPv6Address
_CandidateTuple: TypeAlias = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class SelectionCriteria:
    """Properties of a request that affect the selection."""

    attributes: tuple[tuple[str, str | None], ...] = ()
    """`locatt`: attributes with their required value, or None for any, most important first."""
    country: str | None = None
    """Country code of the client, if known."""
    address: Address | None = None
    """Address of the client, if it should be used."""


@dataclass(frozen=True, slots=True)
class SelectedLocation:
    """The selected location."""

    candidate: Candidate
    by: Method | None
    """The method that decided; None if there was only one candidate."""


def parse_locatt(text: str) -> tuple[str, str | None]:
    """Parse `ATTRIBUTE:VALUE`, or an attribute alone."""
    name, colon, value = text.partition(":")
    return name, value if colon else None


def select_location(candidates: Candidates, criteria: SelectionCriteria, number: float) -> SelectedLocation | None:
    """Select the location for a request; None if there is none. `number` is random, 0 ≤ number < 1."""
    if not 0.0 <= number < 1.0:
        raise ValueError(f"{number} is not a random number in 0 ≤ number < 1")
    remaining, by = candidates.locations, None
    for method in (*candidates.methods, Method.WEIGHTED):
        if len(remaining) <= 1:
            break
        matching = _apply_method(method, remaining, criteria, number)
        if matching and len(matching) < len(remaining):
            remaining, by = matching, method
    return SelectedLocation(remaining[0], by) if remaining else None


def _apply_method(
    method: Method, candidates: _CandidateTuple, criteria: SelectionCriteria, number: float
) -> _CandidateTuple:
    """Filter candidates by a method; all of them if it does not apply."""
    match method:
        case Method.LOCATT:
            return _by_attributes(candidates, criteria)
        case Method.ADDRESS:
            return candidates if criteria.address is None else _by_address(candidates, criteria.address)
        case Method.COUNTRY:
            return candidates if criteria.country is None else _by_country(candidates, criteria.country)
        case Method.SCORE:
            scores = [parse_number(candidate.location.get("score"), 0.0) for candidate in candidates]
            highest = max(scores)
            return tuple([candidate for candidate, score in zip(candidates, scores, strict=True) if score == highest])
    return (_by_weight(candidates, number),)


def _by_attributes(candidates: _CandidateTuple, criteria: SelectionCriteria) -> _CandidateTuple:
    """Filter by attributes; an attribute that no candidate has is ignored."""
    for name, value in criteria.attributes:
        matching = [candidate for candidate in candidates if _has_attribute(candidate, name, value)]
        candidates = tuple(matching) or candidates
    return candidates


def _has_attribute(candidate: Candidate, name: str, value: str | None) -> bool:
    actual = candidate.location.get(name)
    return actual is not None and value in (None, actual)


def _by_address(candidates: _CandidateTuple, address: Address) -> _CandidateTuple:
    known = {address, _unmap_ipv4(address)}
    remaining = MAX_TOTAL_NETWORKS
    matching = []
    for candidate in candidates:
        text = candidate.location.get("addresses")
        limit = min(remaining, MAX_NETWORKS)
        networks = text.split(",", limit)[:limit] if text else []
        remaining -= len(networks)
        if any(_contains(network, known) for network in networks):
            matching.append(candidate)
    return tuple(matching)


def _contains(network: str, addresses: set[Address]) -> bool:
    try:
        parsed = ip_network(network.strip(), strict=False)
    except ValueError:
        return False
    return any(address in parsed for address in addresses)


def _unmap_ipv4(address: Address) -> Address:
    """Convert `::ffff:192.0.2.1`, as dual-stack sockets report it, to IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _by_country(candidates: _CandidateTuple, country: str) -> _CandidateTuple:
    """Candidates of the country; if there are none, those without a country."""
    countries = [(candidate.location.get("country") or "").strip().lower() for candidate in candidates]
    expected = country.strip().lower()
    if expected not in countries:
        expected = ""
    return tuple([candidate for candidate, code in zip(candidates, countries, strict=True) if code == expected])


def _by_weight(candidates: _CandidateTuple, number: float) -> Candidate:
    """Choose one candidate in proportion to the weights; with equal probability if all are zero."""
    total = sum(candidate.weight for candidate in candidates)
    if total <= 0.0:
        return candidates[int(number * len(candidates))]
    point = number * total
    for candidate in candidates:
        point -= candidate.weight
        if point < 0.0:
            return candidate
    # Rounding can leave a remainder, which belongs to the last candidate with a weight.
    return next(candidate for candidate in reversed(candidates) if candidate.weight > 0.0)


def parse_address(text: str) -> Address | None:
    """Parse an IP address; None if it is invalid."""
    try:
        return ip_address(text.strip())
    except ValueError:
        return None
