"""What users call: Redrive and its namespaces."""
