"""Measurements of a server on this machine: load, and the CPU time of its processes."""
