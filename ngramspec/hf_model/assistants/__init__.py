"""The transformers side of models that draft."""
