"""Planning: the five domains of BeelineBench that need no download, to walk through or to search."""
