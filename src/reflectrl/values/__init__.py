"""Online learning through critics of single actions: ArCHer, and value-guided sampling in the manner of LINVIT."""
