"""What a step costs: hardware, curves and one formula family per file."""
