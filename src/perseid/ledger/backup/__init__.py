"""Backups: archive, restore and bulk load."""
