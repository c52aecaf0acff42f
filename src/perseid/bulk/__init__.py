"""Many records at once: tables, JSON lines and Handle batch files; migration from other servers.

Readers and writers of formats are pure: they work on open files and iterators, and know no registry.
"""
