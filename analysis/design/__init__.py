"""What a study will be able to tell, before it is trained: proposals, simulated through the project's own fits."""
