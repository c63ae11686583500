"""Rolling a target's caches back."""
