"""Training of the reflector: reinforcement learning of its reflections, and rejection sampling."""
