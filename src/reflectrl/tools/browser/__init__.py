"""A trained pair in a browser: its models as ONNX, its environment as a table, and a page that plays with both."""
