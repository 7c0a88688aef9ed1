"""Training of multi-token heads, with their own output fed back as it is at serving."""
