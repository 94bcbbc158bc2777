"""The pass of `pypm.integrations.vllm` by a name of two parts: vLLM finds no longer ones.

For `CompilationConfig.inductor_passes`: `{"post_grad_custom_post_pass": "pypm_vllm.rewrite"}`.
"""

from pypm.integrations.vllm import from_environment

rewrite = from_environment()
