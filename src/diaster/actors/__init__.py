"""Acting: policies on the host, collecting episodes, evaluating, and the processes that do so. No JAX in here."""
