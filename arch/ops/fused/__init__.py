"""What a layer computes around its sequence operation, fused so that memory is read and written seldom."""
