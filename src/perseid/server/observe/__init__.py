"""Logs, access log, metrics."""
