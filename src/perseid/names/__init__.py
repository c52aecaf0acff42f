"""Syntax of handles: prefixes, suffix schemes and URI forms.

No I/O: clocks and random numbers are arguments. The rules and their ids are in docs/reference/names.md.
"""
