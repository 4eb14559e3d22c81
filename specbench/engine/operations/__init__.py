"""Operations of a step, as plain functions of tensors, and on a GPU as kernels of ours in Triton."""
