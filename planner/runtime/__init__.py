"""The torch side of a Plan."""
