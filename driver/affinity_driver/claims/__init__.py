"""From a ResourceClaim to what its devices on this node need: reading, scoping, decoding, affinity keys."""
