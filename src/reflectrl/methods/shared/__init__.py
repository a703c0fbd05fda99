"""Parts that several methods share. Each method itself is one file of the folder above."""
