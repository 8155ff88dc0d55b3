"""Exact reductions of a Graph or a Problem."""
