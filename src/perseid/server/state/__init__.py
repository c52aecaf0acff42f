"""Short-lived state that all processes of a server share."""
