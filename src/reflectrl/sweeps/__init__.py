"""Several runs: one that takes over what another has made, a grid of them, and a page that compares them."""
