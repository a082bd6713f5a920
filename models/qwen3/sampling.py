"""Greedy sampling: the id of the greatest logit."""

import pypto.language as pl


@pl.jit.inline
def greedy_ids(logits: pl.Tensor, sampled_ids: pl.Tensor):
    """fp32 [batch, VOCAB] -> column 0 of sampled_ids, int32 [batch, SAMPLED_IDS_PAD]; the rest 0.

    The columns from REAL_VOCAB on are padding. Of equal logits the lowest id is taken.
    """
    batch = pl.tensor.dim(logits, 0)
    for row in pl.parallel(batch):
        with pl.at(level=pl.Level.CORE_GROUP, name_hint="greedy_sample"):
            scores = pl.slice(logits, [1, REAL_VOCAB], [row, 0])
            zeros = pl.full([1, SAMPLED_IDS_PAD], dtype=pl.INT32, value=0)
            sampled_ids = pl.assemble(sampled_ids, zeros, [row, 0])
            sampled_ids = pl.assemble(sampled_ids, pl.row_argmax(scores), [row, 0])
    return sampled_ids


@pl.jit
def greedy_sample_fwd(
    logits: pl.Tensor[[BATCH_DYN, VOCAB], pl.FP32],
    sampled_ids: pl.Out[pl.Tensor[[BATCH_DYN, SAMPLED_IDS_PAD], pl.INT32]],
):
    """Pick the next token of each row."""
    sampled_ids = greedy_ids(logits, sampled_ids)
    return sampled_ids
