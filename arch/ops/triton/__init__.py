"""The GPU form of the sequence operations: Triton kernels, imported where they run. NOTES.md has plan and numbers."""
