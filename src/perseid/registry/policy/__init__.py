"""What a namespace demands: policies, authority metadata, types, aliases, templates."""
