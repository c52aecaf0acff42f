"""The native Handle protocol: UDP, TCP, authentication and sessions."""
