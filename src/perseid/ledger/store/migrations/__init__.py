"""Migrations of the tables: one file per version, never changed after its release."""
