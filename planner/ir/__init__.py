"""Plain data: what the passes exchange. No torch, no solver."""
