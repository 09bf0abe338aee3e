"""Record reference logits with transformers: record.py CHECKPOINT OUT.npz. See PROVENANCE.md."""

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

checkpoint, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
ids = np.random.RandomState(1).randint(0, model.config.vocab_size, (1, 140)).astype(np.int32)
with torch.no_grad():
    logits = model(input_ids=torch.tensor(ids, dtype=torch.long)).logits.float().numpy()
np.savez_compressed(out, ids=ids, logits=logits)
