"""Plans parallel training: trace, price, search, plan file, and the runtime that executes it."""
