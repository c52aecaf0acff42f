"""Logs, access log and metrics."""
