"""One file per pipeline schedule: pure functions to lists of actions."""
