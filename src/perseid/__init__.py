"""Perseid: persistent identifiers that are minted, kept, proved and resolved by one package."""

__version__ = "0.1.0"
