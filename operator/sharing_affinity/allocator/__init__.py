"""The allocator layer."""
