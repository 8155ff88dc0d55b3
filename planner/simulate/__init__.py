"""Runs a Schedule with predicted durations."""
