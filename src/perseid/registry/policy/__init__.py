"""Namespace policies, authority metadata, types, aliases and templates."""
