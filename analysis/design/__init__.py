"""What a study will identify, before it is trained: proposals, simulated through the project's own fits."""
