"""A replay of whole episodes with a decomposer inside, for learners that are not ours."""
