"""Effects: one module per outside thing (DuckDB, SQLite, MLflow, Great Expectations, files)."""
