"""What a run leaves in MLflow; the only room that imports it."""
