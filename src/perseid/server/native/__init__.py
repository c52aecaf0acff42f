"""The native protocol of the Handle System."""
