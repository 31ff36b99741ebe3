"""Who talks: the kernel, and the three actors built on it (request, dispatcher, engine)."""
