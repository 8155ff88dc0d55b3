"""Public names of autopar, loaded when first used."""
