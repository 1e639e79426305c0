"""mlxtrain: train the file you run. LoRA and more on GGUF models, with MLX."""

from mlxtrain.blas import use_numpy_blas
from mlxtrain.version import __version__ as __version__

# Has to happen before anything imports mlx.core: the dynamic linker binds MLX's matrix products then.
blas_status = use_numpy_blas()
