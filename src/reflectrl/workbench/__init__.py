"""For whoever builds an environment: whether it keeps its promises, and what it is fit for."""
