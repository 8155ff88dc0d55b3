"""The user's model file, recorded as a Graph."""
