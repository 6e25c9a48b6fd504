"""A trained policy as an object: it acts, can be pickled, and is exported to ONNX. Loading one needs no JAX."""
