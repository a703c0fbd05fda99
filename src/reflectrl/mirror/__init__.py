"""Run folders that are copied to an address (a bucket, another machine) while they are made, and fetched from there."""
