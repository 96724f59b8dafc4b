"""Stand-ins of the packages that may compute attention: their signatures, word for word, over plain torch.

flash_attn_interface 3.0 (Dao-AILab/flash-attention, 0251105, hopper/flash_attn_interface.py) and flashinfer-python 0.7.2.post1. They
check what the packages check of their arguments, and like them read only what they were given: a wrapper made for graphs its buffers.
"""

from typing import Any

import torch


def paged(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: list[tuple[int, int, list[int], int]],
    scale: float, left: int, softcap: float, out: torch.Tensor,
) -> None:  # fmt: skip
    """Causal attention of rows (first query, queries, blocks, positions) into `out` [T, H, D]; -1: `left` has no limit."""
    heads, kv_heads = q.shape[1], keys.shape[2]
    for first, count, blocks, length in rows:
        if not count:
            continue
        k, v = (cache[blocks].flatten(0, 1)[:length].double().repeat_interleave(heads // kv_heads, dim=1) for cache in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q[first : first + count].double(), k) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        behind = (torch.arange(count) + length - count)[:, None] - torch.arange(length)[None]
        seen = (behind >= 0) & (behind <= left) if left >= 0 else behind >= 0
        weights = torch.softmax(scores.masked_fill(~seen.to(q.device), float("-inf")), dim=-1)
        out[first : first + count] = torch.einsum("hqk,khd->qhd", weights, v).to(out.dtype)


class FlashAttention3:
    """The module `flash_attn_interface`."""

    @staticmethod
    def flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k=None,
        v=None,
        qv=None,
        rotary_cos=None,
        rotary_sin=None,
        cache_seqlens: int | torch.Tensor | None = None,
        cache_batch_idx: torch.Tensor | None = None,
        cache_leftpad: torch.Tensor | None = None,
        page_table: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k_new: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        rotary_seqlens: torch.Tensor | None = None,
        q_descale: torch.Tensor | None = None,
        k_descale: torch.Tensor | None = None,
        v_descale: torch.Tensor | None = None,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        attention_chunk=0,
        softcap=0.0,
        rotary_interleaved=True,
        scheduler_metadata=None,
        num_splits=0,
        pack_gqa=None,
        sm_margin=0,
        return_softmax_lse=False,
    ):
        assert k is None and v is None and causal and window_size[1] in (-1, 0) and 1 <= num_splits <= 256
        assert q.dtype == k_cache.dtype == v_cache.dtype
        assert all(each.stride(-1) == 1 for each in (q, k_cache, v_cache, page_table))
        assert all(each.dtype == torch.int32 for each in (page_table, cu_seqlens_q, cache_seqlens))
        batch = len(cu_seqlens_q) - 1
        assert cache_seqlens.shape == (batch,) and page_table.shape[0] == batch and k_cache.ndim == 4
        assert int(cu_seqlens_q.diff().max()) <= max_seqlen_q
        first, block_tokens = cu_seqlens_q.tolist(), k_cache.shape[1]
        rows = [
            (first[row], first[row + 1] - first[row], page_table[row, : -(-length // block_tokens)].tolist(), length)
            for row, length in enumerate(cache_seqlens.tolist())
        ]
        out = torch.full_like(q, torch.nan)
        paged(q, k_cache, v_cache, rows, softmax_scale, window_size[0], softcap, out)
        return out


class _Wrapper:
    """What both wrappers share: workspaces, and a run over what was planned."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str) -> None:
        assert kv_layout == "NHD" and not float_workspace_buffer.any(), "a workspace begins as zeros"
        self._float, self._int = float_workspace_buffer, None

    def reset_workspace_buffer(self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor) -> None:
        assert all(buffer.data_ptr() % 16 == 0 for buffer in (float_workspace_buffer, int_workspace_buffer))
        self._float, self._int = float_workspace_buffer, int_workspace_buffer

    def _planned(self, heads: int, kv_heads: int, head_dim: int, block_tokens: int, how: dict[str, Any]) -> None:
        self._shape, self._block_tokens, self._how = (heads, kv_heads, head_dim), block_tokens, how

    def _run(self, q: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor, qo_indptr: torch.Tensor) -> torch.Tensor:
        keys, values = cache
        heads, kv_heads, head_dim = self._shape
        assert q.shape[1:] == (heads, head_dim) and keys.shape[1:] == (self._block_tokens, kv_heads, head_dim) and out.shape == q.shape
        assert out.is_contiguous() and (q.dtype, keys.dtype) == (self._how["q_data_type"], self._how["kv_data_type"])
        first, indptr, last = qo_indptr.tolist(), self._paged_kv_indptr_buf.tolist(), self._paged_kv_last_page_len_buf.tolist()
        rows = []
        for row in range(len(last)):
            blocks = self._paged_kv_indices_buf[indptr[row] : indptr[row + 1]].tolist()
            rows.append((first[row], first[row + 1] - first[row], blocks, max(0, len(blocks) - 1) * self._block_tokens + last[row]))
        assert first[-1] == len(q)
        paged(q, keys, values, rows, self._how["sm_scale"], self._how["window_left"], self._how["logits_soft_cap"], out)
        return out


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        assert use_cuda_graph and len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1
        self._paged_kv_indptr_buf, self._paged_kv_indices_buf = paged_kv_indptr_buffer, paged_kv_indices_buffer
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buffer

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        window_right: int = 0,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
        is_causal: bool | None = None,
    ) -> None:
        assert indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        assert indptr.device.type == last_page_len.device.type == "cpu", "else the host waits for the device"
        assert len(last_page_len) == len(self._paged_kv_last_page_len_buf) and len(indices) <= len(self._paged_kv_indices_buf)
        self._paged_kv_indptr_buf.copy_(indptr)
        self._paged_kv_indices_buf[: len(indices)].copy_(indices)
        self._paged_kv_last_page_len_buf.copy_(last_page_len)
        self._planned(num_qo_heads, num_kv_heads, head_dim, page_size, locals())

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *args,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return self._run(q, paged_kv_cache, out, torch.arange(len(self._paged_kv_last_page_len_buf) + 1))


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        assert not use_cuda_graph

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        block_tables: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        uniform_q_len: int | None = None,
    ) -> None:
        given = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert causal and all(each.dtype == torch.int32 for each in given)
        assert all(each.device.type == "cpu" for each in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len))
        self._qo_indptr, self._paged_kv_indptr_buf, self._paged_kv_indices_buf, self._paged_kv_last_page_len_buf = given
        self._planned(num_qo_heads, num_kv_heads, head_dim_qk, page_size, locals())

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *args,
        q_scale: float | torch.Tensor | None = None,
        k_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return self._run(q, paged_kv_cache, out, self._qo_indptr)
