"""``affinity-driver doctor``: what keeps a driver from working on this node, and the way out of each."""
