"""Which of several locations somebody is sent to.

Methods are tried in the order that the list gives. Each keeps some of the places and drops the others; one that would
drop all of them is undone, and when one place is left it is chosen. At the end weights decide. What is random about it
is one number, an argument: the same request with the same number goes to the same place.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from .locations import Candidate, Candidates, Method, read_number

MAX_NETWORKS: Final = 100
"""Networks of one location that are looked at."""

MAX_NETWORKS_IN_ALL: Final = 2_000
"""Networks of all locations together: some hundredths of a second of work."""

Address: TypeAlias = IPv4Address | IPv6Address
_Places: TypeAlias = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is known of a request, as far as it decides where it goes."""

    attributes: tuple[tuple[str, str | None], ...] = ()
    """`locatt`: names of attributes with the value that they shall have, or None for any, the most important first."""
    country: str | None = None
    """The code of the country that it comes from, if that is known."""
    address: Address | None = None
    """The address that it comes from, if it shall count."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Where somebody is sent, and why."""

    place: Candidate
    by: Method | None
    """The method that left this one place; None if there was no other."""


def read_wish(text: str) -> tuple[str, str | None]:
    """Take `attribute:value`, or an attribute alone."""
    name, colon, value = text.partition(":")
    return name, value if colon else None


def choose(candidates: Candidates, wishes: Wishes, number: float) -> Chosen | None:
    """The place that a request is sent to; None if there is none. `number` is random, from 0 up to but without 1."""
    if not 0.0 <= number < 1.0:
        raise ValueError(f"{number} is no random number from 0 up to 1")
    places, by = candidates.places, None
    for method in (*candidates.methods, Method.WEIGHTED):
        if len(places) <= 1:
            break
        kept = _kept(method, places, wishes, number)
        if kept and len(kept) < len(places):
            places, by = kept, method
    return Chosen(places[0], by) if places else None


def _kept(method: Method, places: _Places, wishes: Wishes, number: float) -> _Places:
    """What a method keeps; everything, if it cannot tell."""
    match method:
        case Method.LOCATT:
            return _by_attributes(places, wishes)
        case Method.ADDRESS:
            return places if wishes.address is None else _by_address(places, wishes.address)
        case Method.COUNTRY:
            return places if wishes.country is None else _by_country(places, wishes.country)
        case Method.SCORE:
            scores = [read_number(place.location.get("score"), 0.0) for place in places]
            highest = max(scores)
            return tuple([place for place, score in zip(places, scores, strict=True) if score == highest])
    return (_weighted(places, number),)


def _by_attributes(places: _Places, wishes: Wishes) -> _Places:
    """A wish that no place fulfils is none."""
    for name, value in wishes.attributes:
        kept = [place for place in places if _fulfils(place, name, value)]
        places = tuple(kept) or places
    return places


def _fulfils(place: Candidate, name: str, value: str | None) -> bool:
    found = place.location.get(name)
    return found is not None and value in (None, found)


def _by_address(places: _Places, address: Address) -> _Places:
    known = {address, _plain(address)}
    left = MAX_NETWORKS_IN_ALL
    kept = []
    for place in places:
        text = place.location.get("addresses")
        most = min(left, MAX_NETWORKS)
        networks = text.split(",", most)[:most] if text else []
        left -= len(networks)
        if any(_holds(network, known) for network in networks):
            kept.append(place)
    return tuple(kept)


def _holds(network: str, addresses: set[Address]) -> bool:
    try:
        found = ip_network(network.strip(), strict=False)
    except ValueError:
        return False
    return any(address in found for address in addresses)


def _plain(address: Address) -> Address:
    """An IPv4 address as such: a socket for both kinds shows it in the clothes of the other, `::ffff:192.0.2.1`."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _by_country(places: _Places, country: str) -> _Places:
    """Those of the country; if there are none, those of no country."""
    countries = [(place.location.get("country") or "").strip().lower() for place in places]
    wanted = country.strip().lower()
    if wanted not in countries:
        wanted = ""
    return tuple([place for place, found in zip(places, countries, strict=True) if found == wanted])


def _weighted(places: _Places, number: float) -> Candidate:
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


def read_address(text: str) -> Address | None:
    """An address as it is written; None if it is none."""
    try:
        return ip_address(text.strip())
    except ValueError:
        return None
