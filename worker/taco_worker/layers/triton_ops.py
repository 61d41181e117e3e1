"""A layer's element-wise operations as Triton kernels."""

from taco_kernels.triton import activation, elementwise, kv_write, norm, rotary, rotary_kv
from taco_kernels.triton.experts import multiply, route


class TritonOps:
    """`LayerOps` on a GPU: one kernel launch for three to ten of torch's."""

    rms_norm = staticmethod(norm.rms_norm)
    layer_norm = staticmethod(norm.layer_norm)
    activate = staticmethod(activation.activate)
    act_mul = staticmethod(activation.act_mul)
    add = staticmethod(elementwise.add)
    scale = staticmethod(elementwise.scale)
    cap = staticmethod(elementwise.cap)
    clip = staticmethod(elementwise.clip)
    gate = staticmethod(elementwise.gate)
    rotate = staticmethod(rotary.rotate)
    rotate_and_write_kv = staticmethod(rotary_kv.rotate_and_write_kv)
    write_kv = staticmethod(kv_write.write_kv)
    route = staticmethod(route.route)
    multiply_experts = staticmethod(multiply.multiply_experts)
