import torch
from simpler.task_interface import CallConfig, CommBufferSpec, DataType, TaskArgs, TensorArgType
from pypto.runtime.tensor_arg import make_tensor_arg
from pypto.runtime.distributed_runner import _submit_chip

def _alloc_intermediates(tensors, world_size=1):
    pass

def add_rank_host(orch, _args, config, *, tensors, callables, sub_ids, _keep, world_size, _domain_provider=None):
    ROWS_DYN = tensors["x__ssa_v0"].shape[1]
    t__tmp_v0 = world_size
    for r__idx_v0 in range(0, t__tmp_v0, 1):
        tensors["t__tmp_v1"] = tensors["x__ssa_v0"][r__idx_v0, 0:ROWS_DYN, 0:64]
        tensors["t__tmp_v2"] = tensors["y__ssa_v0"][r__idx_v0, 0:ROWS_DYN, 0:64]
        _ta_0 = TaskArgs()
        _ta_0.add_tensor(make_tensor_arg(orch._worker, tensors["t__tmp_v1"]), TensorArgType.INPUT)
        _ta_0.add_tensor(make_tensor_arg(orch._worker, tensors["t__tmp_v2"]), TensorArgType.OUTPUT_EXISTING)
        _ta_0.add_scalar(r__idx_v0)
        _keep.append(_ta_0)
        _submit_chip(orch, callables["add_rank"], _ta_0, config, r__idx_v0)

add_rank_host._pypto_distributed_entry = True

