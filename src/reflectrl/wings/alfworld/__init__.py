"""ALFWorld: household tasks as text, played by a native engine."""
