"""Fetching data: the verb `data`, for which every benchmark brings its own options, and the download of one file."""
