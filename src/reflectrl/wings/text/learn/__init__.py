"""Online learning on text."""
