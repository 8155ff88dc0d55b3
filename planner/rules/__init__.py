"""Which placements an operator may take on one mesh axis."""
