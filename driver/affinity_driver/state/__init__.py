"""What is prepared on this node: the rules (pure), the checkpoint, and the machine that carries both out."""
