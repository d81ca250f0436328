"""Small checkpoints of every family whose weights are drawn from a seed: only config, tensor shapes and goldens are stored.

A case NAME is data/families/NAME.json {"config": config.json, "tensors": {name: [type, shape]}} and NAME.safetensors
{input_ids, logits, prompt_ids, greedy_ids}, written by data/make_family_goldens.py.
"""
import json
import os
import struct
import zlib

import numpy as np

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "families")


def names():
    return sorted(file[:-5] for file in os.listdir(FOLDER) if file.endswith(".json"))


def load(name):
    with open(os.path.join(FOLDER, name + ".json")) as file:
        return json.load(file)


def draw(name, kind, shape):
    """A tensor's values as they are stored; RandomState's streams are frozen."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if kind == "U8":  # MXFP4: any codes, exponents that make weights of about 1/8
        low, high = (121, 124) if name.endswith("_scales") else (0, 256)
        return random.randint(low, high, shape).astype(np.uint8)
    values = random.standard_normal(shape)
    if name.endswith("A_log"):
        values = np.log(1 + np.abs(3 * values))
    elif len(shape) == 1:
        values = 1 + 0.1 * values if "norm" in name and name.endswith("weight") else values * (1 if "sinks" in name else 0.1)
    elif name.endswith("_bias"):
        values = 0.1 * values
    elif "embed_tokens" not in name:
        stacked = name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj")
        values /= np.sqrt(shape[1] if stacked else shape[-1])
    values = values.astype(np.float32)
    if kind == "F32":
        return values
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path, tensors):
    """`tensors`: name -> (type word, array)."""
    header, offset = {}, 0
    for name, (kind, array) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            out.write(np.ascontiguousarray(array).tobytes())


def write_model(folder, case):
    """The checkpoint as a hub folder."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(case["config"], out, indent=1)
    tensors = {name: (kind, draw(name, kind, shape)) for name, (kind, shape) in case["tensors"].items()}
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
