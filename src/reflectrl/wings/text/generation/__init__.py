"""Writing with a trained model, and judging what was written: metrics, judges, tables, percentiles."""
