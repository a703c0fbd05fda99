"""Ways to learn: each beside its settings and its arms."""
