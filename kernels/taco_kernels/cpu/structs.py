"""The argument structs of the CPU kernels for ctypes, field by field as in csrc/."""

from ctypes import Structure, c_bool, c_float, c_int32, c_int64, c_void_p

# `DType`, and `TableType` by the names in safetensors files (native/csrc/runtime/types.h).
MATRIX_TYPES = {"f32": 0, "bf16": 1, "i8": 2}
TENSOR_TYPES = {"F32": 0, "BF16": 1, "F16": 2}


class ColumnOrder(Structure):
    _fields_ = (("columns", c_void_p), ("places", c_void_p))


class Matrix(Structure):
    _fields_ = (
        ("type", c_int32),
        ("n", c_int64),
        ("k", c_int64),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("column_sums", c_void_p),
        ("bias", c_void_p),
        ("segments", c_int64),
        ("parts", c_void_p),
        ("num_parts", c_int64),
        ("order", ColumnOrder),
        ("is_cached", c_bool),
    )


class CodePart(Structure):
    _fields_ = (
        ("kind", c_int32),
        ("scale_type", c_int32),
        ("step_type", c_int32),
        ("offset", c_int32),
        ("zero", c_int32),
        ("first_panel", c_int64),
        ("panel_step", c_int64),
        ("num_panels", c_int64),
        ("panel_bytes", c_int64),
        ("k", c_int64),
        ("chunk", c_int64),
        ("num_groups", c_int64),
        ("data", c_void_p),
        ("table", c_void_p),
        ("groups", c_void_p),
    )


class CodePacking(Structure):
    _fields_ = (
        ("part", CodePart),
        ("operands", c_int32),
        ("first", c_int64),
        ("count", c_int64),
        ("codes", c_void_p),
        ("stride", c_int64),
        ("columns", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("steps", c_void_p),
        ("offset_steps", c_void_p),
    )


class CodeWords(Structure):
    _fields_ = (
        ("words", c_void_p),
        ("row_stride", c_int64),
        ("column_stride", c_int64),
    )


class Packing(Structure):
    _fields_ = (
        ("source_type", c_int32),
        ("source", c_void_p),
        ("count", c_int64),
        ("k", c_int64),
        ("stride", c_int64),
        ("type", c_int32),
        ("first", c_int64),
        ("panel_step", c_int64),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("column_sums", c_void_p),
    )


class Rows(Structure):
    _fields_ = (
        ("count", c_int64),
        ("data", c_void_p),
        ("stride", c_int64),
        ("scales", c_void_p),
    )


class TokenMasks(Structure):
    _fields_ = (
        ("bits", c_void_p),
        ("num_words", c_int64),
        ("of_row", c_void_p),
    )


class AdapterRows(Structure):
    _fields_ = (
        ("places", c_void_p),
        ("ids", c_void_p),
        ("inner", c_void_p),
        ("stride", c_int64),
        ("b", c_void_p),
        ("ranges", c_void_p),
    )


class Product(Structure):
    _fields_ = (
        ("rows", Rows),
        ("matrix", Matrix),
        ("epilogue", c_int32),
        ("activation", c_int32),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("out_is_operand", c_bool),
        ("alpha", c_float),
        ("limit", c_float),
        ("factor", c_float),
        ("masks", TokenMasks),
        ("adapters", AdapterRows),
    )


class Router(Structure):
    _fields_ = (
        ("kind", c_int32),
        ("num_experts", c_int64),
        ("top_k", c_int64),
        ("renormalize", c_bool),
        ("scale", c_float),
        ("num_groups", c_int64),
        ("top_groups", c_int64),
        ("group_score", c_int32),
        ("jitter", c_float),
    )


class Routing(Structure):
    _fields_ = (
        ("router", Router),
        ("count", c_int64),
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("bias", c_void_p),
        ("ids", c_void_p),
        ("ids_stride", c_int64),
        ("weights", c_void_p),
        ("weights_stride", c_int64),
    )


class GatedActivation(Structure):
    _fields_ = (
        ("function", c_int32),
        ("alpha", c_float),
        ("limit", c_float),
    )


class ExpertProduct(Structure):
    _fields_ = (
        ("rows", Rows),
        ("top_k", c_int64),
        ("num_experts", c_int64),
        ("ids", c_void_p),
        ("ids_stride", c_int64),
        ("weights", c_void_p),
        ("weights_stride", c_int64),
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("activation", GatedActivation),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("adds", c_bool),
        ("scratch", c_void_p),
    )


class Adapters(Structure):
    _fields_ = (
        ("count", c_int64),
        ("a", c_void_p),
        ("b", c_void_p),
        ("ranges", c_void_p),
    )


class AdapterProduct(Structure):
    _fields_ = (
        ("adapters", Adapters),
        ("rows", Rows),
        ("ids", c_void_p),
        ("tokens", c_void_p),
        ("scratch", c_void_p),
    )


class KVEntry(Structure):
    _fields_ = (
        ("num_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("offset", c_int64),
        ("is_latent", c_bool),
        ("key_scale", c_float),
        ("value_scale", c_float),
    )


class KVCache(Structure):
    _fields_ = (
        ("type", c_int32),
        ("data", c_void_p),
        ("num_blocks", c_int64),
        ("block_size", c_int64),
        ("block_bytes", c_int64),
        ("num_entries", c_int64),
        ("entries", c_void_p),
    )


class Batch(Structure):
    _fields_ = (
        ("num_tokens", c_int64),
        ("num_seqs", c_int64),
        ("query_start", c_void_p),
        ("seq_lens", c_void_p),
        ("block_tables", c_void_p),
        ("block_table_stride", c_int64),
        ("prefix_groups", c_void_p),
    )


class KVCopies(Structure):
    _fields_ = (
        ("count", c_int64),
        ("sources", c_void_p),
        ("targets", c_void_p),
    )


class KeyValueRows(Structure):
    _fields_ = (
        ("keys", c_void_p),
        ("key_stride", c_int64),
        ("values", c_void_p),
        ("value_stride", c_int64),
    )


class BlockSparse(Structure):
    _fields_ = (
        ("block_size", c_int64),
        ("num_local_blocks", c_int64),
        ("stride", c_int64),
        ("head_step", c_int64),
        ("head_offset", c_int64),
    )


class Attention(Structure):
    _fields_ = (
        ("cache", KVCache),
        ("batch", Batch),
        ("entry", c_int64),
        ("num_heads", c_int64),
        ("scale", c_float),
        ("window", c_int64),
        ("cap", c_float),
        ("alibi", c_void_p),
        ("sinks", c_void_p),
        ("log_n", c_int64),
        ("block_sparse", BlockSparse),
        ("queries", c_void_p),
        ("query_stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("out_is_operand", c_bool),
        ("workspace", c_void_p),
    )


class NormRows(Structure):
    _fields_ = (
        ("kind", c_int32),
        ("eps", c_float),
        ("count", c_int64),
        ("size", c_int64),
        ("num_groups", c_int64),
        ("rows", c_void_p),
        ("stride", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("weight_stride", c_int64),
        ("type", c_int32),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("scales", c_void_p),
    )


class Rotation(Structure):
    _fields_ = (
        ("style", c_int32),
        ("num_heads", c_int64),
        ("head_stride", c_int64),
        ("rotary_dim", c_int64),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("num_sections", c_int64),
        ("sections", c_void_p),
    )


class RotaryRows(Structure):
    _fields_ = (
        ("rotation", Rotation),
        ("count", c_int64),
        ("rows", c_void_p),
        ("stride", c_int64),
        ("positions", c_void_p),
    )


class Mapped(Structure):
    _fields_ = (
        ("function", c_int32),
        ("count", c_int64),
        ("numbers", c_void_p),
        ("out", c_void_p),
    )


class ActivatedRows(Structure):
    _fields_ = (
        ("activation", c_int32),
        ("alpha", c_float),
        ("limit", c_float),
        ("count", c_int64),
        ("size", c_int64),
        ("rows", c_void_p),
        ("up", c_void_p),
        ("stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
    )


class RowOp(Structure):
    _fields_ = (
        ("kind", c_int32),
        ("number", c_float),
        ("count", c_int64),
        ("size", c_int64),
        ("rows", c_void_p),
        ("stride", c_int64),
        ("other", c_void_p),
        ("other_stride", c_int64),
        ("other_size", c_int64),
    )


class TraceSpan(Structure):
    _fields_ = (
        ("begin", c_int64),
        ("end", c_int64),
        ("kind", c_int32),
        ("index", c_int32),
    )


class LogitRows(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("count", c_int64),
        ("vocab_size", c_int64),
        ("stride", c_int64),
    )


class SamplingMetadata(Structure):
    _fields_ = (
        ("logits", LogitRows),
        ("temperature", c_void_p),
        ("min_p", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("uniforms", c_void_p),
        ("token_ids", c_void_p),
        ("scratch", c_void_p),
    )


class Penalties(Structure):
    _fields_ = (
        ("logits", LogitRows),
        ("count", c_int64),
        ("rows", c_void_p),
        ("tokens", c_void_p),
        ("tokens_stride", c_int64),
        ("sequences", c_void_p),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("repetition", c_void_p),
        ("presence", c_void_p),
        ("frequency", c_void_p),
        ("ngram_size", c_void_p),
        ("counts", c_void_p),
    )


class Logprobs(Structure):
    _fields_ = (
        ("logits", LogitRows),
        ("token_ids", c_void_p),
        ("num_top", c_void_p),
        ("width", c_int64),
        ("ids", c_void_p),
        ("values", c_void_p),
        ("ranks", c_void_p),
        ("scratch", c_void_p),
    )
