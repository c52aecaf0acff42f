"""Permissions, authorization, tokens and their scopes."""
