"""Learning of the reflector: reinforcement learning of what it writes, and rejection sampling."""
