"""Parts that several methods share. Each method itself is a file in the parent folder."""
