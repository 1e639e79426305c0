"""The label that is none. Apart from the losses, so that reading data does not import MLX."""

UNLABELLED = -100  # a target that counts for nothing, in the loss and in its mean
