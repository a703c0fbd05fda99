"""Download of data: the verb `data`, with options from every benchmark, and the download of a file."""
