"""Online learning with action-value critics: ArCHer, and value-guided sampling similar to LINVIT."""
