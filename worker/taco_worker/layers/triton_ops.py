"""A layer's element-wise operations as Triton kernels."""

from taco_kernels.triton import activation, kv_write, norm, rotary, rotary_kv
from taco_kernels.triton.experts import multiply, route


class TritonOps:
    """`LayerOps` on a GPU: one kernel launch for three to ten of torch's."""

    rms_norm = staticmethod(norm.rms_norm)
    layer_norm = staticmethod(norm.layer_norm)
    silu_mul = staticmethod(activation.silu_mul)
    rotate = staticmethod(rotary.rotate)
    rotate_and_write_kv = staticmethod(rotary_kv.rotate_and_write_kv)
    write_kv = staticmethod(kv_write.write_kv)
    route = staticmethod(route.route)
    multiply_experts = staticmethod(multiply.multiply_experts)
