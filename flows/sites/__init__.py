"""Workers at sites, and runs whose devices they have."""
