"""An installation: its directory, settings, site information and certificates."""
