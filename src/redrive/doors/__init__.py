"""Ways in: no logic, everything goes through the app."""
