"""Which of several locations somebody is sent to.

Methods are tried in the order that the list gives. Each keeps some of the places and drops the others; one that would
drop all of them is undone, and when one place is left it is chosen. At the end weights decide. What is random about it
is one number, an argument: the same request with the same number goes to the same place.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from .locations import Candidate, Candidates, Method, parse_number

MAX_NETWORKS: Final = 100
"""Networks of one location that are looked at."""

MAX_TOTAL_NETWORKS: Final = 2_000
"""Networks of all locations together: some hundredths of a second of work."""

Address: TypeAlias = IPv4Address | IPv6Address
_CandidateTuple: TypeAlias = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class SelectionCriteria:
    """What is known of a request, as far as it decides where it goes."""

    attributes: tuple[tuple[str, str | None], ...] = ()
    """`locatt`: names of attributes with the value that they shall have, or None for any, the most important first."""
    country: str | None = None
    """The code of the country that it comes from, if that is known."""
    address: Address | None = None
    """The address that it comes from, if it shall count."""


@dataclass(frozen=True, slots=True)
class SelectedLocation:
    """Where somebody is sent, and why."""

    place: Candidate
    by: Method | None
    """The method that left this one place; None if there was no other."""


def parse_locatt(text: str) -> tuple[str, str | None]:
    """Take `attribute:value`, or an attribute alone."""
    name, colon, value = text.partition(":")
    return name, value if colon else None


def select_location(candidates: Candidates, criteria: SelectionCriteria, number: float) -> SelectedLocation | None:
    """The place that a request is sent to; None if there is none. `number` is random, from 0 up to but without 1."""
    if not 0.0 <= number < 1.0:
        raise ValueError(f"{number} is no random number from 0 up to 1")
    places, by = candidates.places, None
    for method in (*candidates.methods, Method.WEIGHTED):
        if len(places) <= 1:
            break
        matching = _apply_method(method, places, criteria, number)
        if matching and len(matching) < len(places):
            places, by = matching, method
    return SelectedLocation(places[0], by) if places else None


def _apply_method(
    method: Method, places: _CandidateTuple, criteria: SelectionCriteria, number: float
) -> _CandidateTuple:
    """What a method keeps; everything, if it cannot tell."""
    match method:
        case Method.LOCATT:
            return _by_attributes(places, criteria)
        case Method.ADDRESS:
            return places if criteria.address is None else _by_address(places, criteria.address)
        case Method.COUNTRY:
            return places if criteria.country is None else _by_country(places, criteria.country)
        case Method.SCORE:
            scores = [parse_number(place.location.get("score"), 0.0) for place in places]
            highest = max(scores)
            return tuple([place for place, score in zip(places, scores, strict=True) if score == highest])
    return (_by_weight(places, number),)


def _by_attributes(places: _CandidateTuple, criteria: SelectionCriteria) -> _CandidateTuple:
    """A wish that no place fulfils is none."""
    for name, value in criteria.attributes:
        matching = [place for place in places if _has_attribute(place, name, value)]
        places = tuple(matching) or places
    return places


def _has_attribute(place: Candidate, name: str, value: str | None) -> bool:
    found = place.location.get(name)
    return found is not None and value in (None, found)


def _by_address(places: _CandidateTuple, address: Address) -> _CandidateTuple:
    known = {address, _unmap_ipv4(address)}
    remaining = MAX_TOTAL_NETWORKS
    matching = []
    for place in places:
        text = place.location.get("addresses")
        limit = min(remaining, MAX_NETWORKS)
        networks = text.split(",", limit)[:limit] if text else []
        remaining -= len(networks)
        if any(_contains(network, known) for network in networks):
            matching.append(place)
    return tuple(matching)


def _contains(network: str, addresses: set[Address]) -> bool:
    try:
        found = ip_network(network.strip(), strict=False)
    except ValueError:
        return False
    return any(address in found for address in addresses)


def _unmap_ipv4(address: Address) -> Address:
    """An IPv4 address as such: a socket for both kinds shows it in the clothes of the other, `::ffff:192.0.2.1`."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _by_country(places: _CandidateTuple, country: str) -> _CandidateTuple:
    """Those of the country; if there are none, those of no country."""
    countries = [(place.location.get("country") or "").strip().lower() for place in places]
    expected = country.strip().lower()
    if expected not in countries:
        expected = ""
    return tuple([place for place, found in zip(places, countries, strict=True) if found == expected])


def _by_weight(places: _CandidateTuple, number: float) -> Candidate:
    """One place, in proportion to the weights; all alike, if none has any."""
    total = sum(place.weight for place in places)
    if total <= 0.0:
        return places[int(number * len(places))]
    point = number * total
    for place in places:
        point -= place.weight
        if point < 0.0:
            return place
    # Rounding may leave a last crumb, which is the last place's that can be chosen.
    return next(place for place in reversed(places) if place.weight > 0.0)


def parse_address(text: str) -> Address | None:
    """An address as it is written; None if it is none."""
    try:
        return ip_address(text.strip())
    except ValueError:
        return None
