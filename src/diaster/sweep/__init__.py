"""Many runs from one file: every cell of a grid is trained, in processes of this machine or on a Ray cluster."""
