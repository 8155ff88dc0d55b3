"""A plan proven before it is run on what it was made for."""
