"""Choosing: candidates, prices, placements, stage cuts."""
