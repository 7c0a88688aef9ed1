"""The training loop: optimisers, schedule, exact resume, metrics, several processes, plans."""
