"""Publishing a pool: what it should look like, what has to change, and the loop that changes it."""
