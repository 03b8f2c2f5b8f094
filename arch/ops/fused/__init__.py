"""What a layer does around the sequence operations, in as few passes over memory as there are products."""
